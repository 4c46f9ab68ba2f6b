"""Corpora: files, folders and globs, here or behind URLs, Hugging Face datasets and standard input, read as one stable
stream of documents.

A document arrives as one or more pieces of at most PIECE_CHARACTERS, cut at whitespace, so that a book on a single line
costs no more memory than a haiku. Nothing is kept: memory does not grow with the corpus.
"""

import bz2
import codecs
import glob
import gzip
import io
import json
import lzma
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import pyarrow

from elektron.data.builtin import python_docs
from elektron.data.storage import FILE_URL, UnreachableError, filesystem, is_url, open_url, reaching

PIECE_CHARACTERS = 1 << 16
CHUNK_BYTES = 1 << 20

STDIN = "-"
PYTHON_DOCS = "builtin:python-docs"
HUB = "hf:"

FORMATS = (".txt", ".jsonl", ".parquet")
COMPRESSIONS = {".gz": 4, ".bz2": 5, ".xz": 5, ".zst": 4}  # and by how much text usually shrinks

_BLANK_LINE = re.compile(r"\n\s*\n")


@dataclass(frozen=True, kw_only=True)
class ReadingConfig:
    """How files become documents."""

    documents: Literal["blank-line", "file"] = "blank-line"
    """What ends a document in a .txt file and on standard input: a blank line, or only the end of the file."""
    text_field: str = "text"
    """The field (.jsonl) or column (.parquet, hf:) that holds the text."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do about bytes that are not UTF-8 text: stop and name them, or replace them and go on."""


class Piece(NamedTuple):
    """Consecutive text of one document."""

    text: str
    ends_document: bool


def sources(specs: Iterable[str]) -> list[str]:
    """The files and streams that the specs name, in a stable order: folders and globs sorted by path."""
    found = [source for spec in specs for source in _expand(spec)]
    if not found:
        raise ValueError("no corpus given: name files, folders, globs, URLs, hf:NAME, '-' or " + PYTHON_DOCS)
    return found


def pieces(corpus: Iterable[str], config: ReadingConfig) -> Iterator[Piece]:
    """Every document of the corpus in order, as pieces. `corpus` is what `sources` returned."""
    for source in corpus:
        yield from _pieces_of(source, config)


def estimated_bytes(corpus: Iterable[str]) -> int:
    """Roughly how much text the files hold; streams whose size nobody knows count as nothing."""
    return sum(_size(s) * COMPRESSIONS.get(Path(s).suffix, 1) for s in corpus if _is_file(s))


def _size(source: str) -> int:
    if not is_url(source):
        return Path(source).stat().st_size
    files, path = filesystem(source)
    with reaching(source):
        return files.size(path) or 0


def _is_file(source: str) -> bool:
    return source not in (STDIN, PYTHON_DOCS) and (not source.startswith(HUB) or is_url(source))


def _expand(spec: str) -> list[str]:
    if not _is_file(spec):
        return [spec]
    if spec.startswith("builtin:"):
        raise ValueError(f"unknown corpus {spec!r}: the one built in is {PYTHON_DOCS}")
    if is_url(spec):
        return _expand_url(spec)
    spec = spec.removeprefix(FILE_URL)
    path = Path(spec)
    if path.is_dir():
        inside = sorted(str(p) for p in path.rglob("*") if p.is_file() and _format(p) and not _hidden(p, path))
        if not inside:
            raise ValueError(f"no text in folder {spec!r}: looked for {', '.join(FORMATS)}, plain or {_COMPRESSED}")
        return inside
    if path.is_file():
        return [spec]
    matches = sorted(p for p in glob.glob(spec, recursive=True) if Path(p).is_file())
    if not matches:
        raise ValueError(f"no such corpus: {spec!r} is neither a file, nor a folder, nor a glob that matches one")
    return matches


def _expand_url(spec: str) -> list[str]:
    """As of paths. An object store has no folders, only names with slashes in them."""
    files, path = filesystem(spec)
    with reaching(spec):
        if wild := re.search(r"[*?\[]", path):
            root = path[: wild.start()].rpartition("/")[0]
            found = [p for p in files.glob(path) if files.isfile(p)]
        elif files.isfile(path):
            return [spec]
        else:
            root, found = path, [p for p in files.find(path) if _format(Path(p))]
    found = [p for p in found if not _hidden(Path(p), Path(root))]
    if not found:
        raise ValueError(
            f"no such corpus: {spec!r} is neither a file, nor a glob that matches one, nor a folder with "
            f"{', '.join(FORMATS)}, plain or {_COMPRESSED}, in it"
        )
    return [files.unstrip_protocol(p) for p in sorted(found)]


_COMPRESSED = ", ".join(COMPRESSIONS)


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _format(path: Path) -> str:
    """'.txt', '.jsonl' or '.parquet', whatever the compression; '' for another file."""
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSIONS else path.suffix
    return suffix if suffix in FORMATS else ""


def _pieces_of(source: str, config: ReadingConfig) -> Iterator[Piece]:
    if source == STDIN:
        yield from _text_pieces(_chunks(sys.stdin.buffer), "standard input", config)
    elif source == PYTHON_DOCS:
        yield from whole_documents(python_docs())
    elif not _is_file(source):
        yield from whole_documents(_hub_documents(source, config))
    elif _format(Path(source)) == ".parquet":
        with _opened(source) as file, _seekable(file, source) as table:
            yield from whole_documents(_parquet_documents(table, source, config))
    elif _format(Path(source)) == ".jsonl":
        with _opened(source) as file:
            yield from whole_documents(_json_documents(file, source, config))
    else:  # a file named outright is text, whatever its ending
        with _opened(source) as file:
            yield from _text_pieces(_chunks(file), source, config)


@contextmanager
def _opened(source: str) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed; a damaged archive is reported by name."""
    openers = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstandard}
    opener: Any = openers.get(Path(source).suffix)
    try:
        with open_url(source) if is_url(source) else open(source, "rb") as raw:
            if opener is None:
                yield raw
                return
            with opener(raw, "rb") as file:
                yield file
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, UnreachableError) or (isinstance(error, OSError) and error.errno is not None):
            raise  # the disk's trouble, or the network's, not the stream's
        raise ValueError(f"{source}: damaged or not what its name says ({error}); replace the file") from error


def _open_zstandard(source: IO[bytes], _mode: str) -> IO[bytes]:
    """Through Arrow: the zstandard package takes a truncated file for a short one."""
    stream: Any = pyarrow.input_stream(source, compression="zstd")
    return io.BufferedReader(stream)


@contextmanager
def _seekable(file: IO[bytes], source: str) -> Iterator[IO[bytes]]:
    """A parquet file is read from its end, so a compressed one is unpacked to disk first."""
    if Path(source).suffix not in COMPRESSIONS:
        yield file
        return
    with tempfile.TemporaryFile() as unpacked:
        shutil.copyfileobj(file, unpacked, CHUNK_BYTES)
        unpacked.seek(0)
        yield unpacked


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _text_pieces(chunks: Iterator[bytes], name: str, config: ReadingConfig) -> Iterator[Piece]:
    """Documents out of running text. `carry` is the beginning of a document whose end is not in sight yet."""
    carry, is_open = "", False
    for text in _decoded(chunks, name, config.errors):
        carry += text
        if config.documents == "blank-line":
            *ended, carry = _BLANK_LINE.split(carry)
            for document in ended:
                yield from _closing(document, is_open)
                is_open = False
        while len(carry) > PIECE_CHARACTERS:
            head, carry = _cut(carry)
            if head:
                yield Piece(head, ends_document=False)
                is_open = True
    yield from _closing(carry, is_open)


def _closing(rest: str, is_open: bool) -> Iterator[Piece]:
    """The last piece of a document; blank text ends one that is open and is nothing otherwise."""
    for head, ends in _split(rest.strip()):
        if head or is_open:
            yield Piece(head, ends)


def whole_documents(documents: Iterable[str]) -> Iterator[Piece]:
    """Documents that are in memory, as pieces."""
    for document in documents:
        yield from _closing(document, is_open=False)


def _split(text: str) -> Iterator[Piece]:
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        stop = _border(text, start)
        if head := text[start:stop].strip():
            yield Piece(head, ends_document=False)
        start = stop
    yield Piece(text[start:].strip(), ends_document=True)


def _cut(text: str) -> tuple[str, str]:
    """A piece and the rest. The rest keeps the whitespace before it, which may turn out to be half of a blank line."""
    body = text.lstrip()
    if len(body) <= PIECE_CHARACTERS:
        return "", body or ("\n" if "\n" in text else "")
    head = body[: _border(body, 0)].rstrip()
    return head, body[len(head) :]


def _border(text: str, start: int) -> int:
    """Where a piece that begins at `start` ends: at its last whitespace, or anywhere if it has none."""
    at = max(text.rfind(space, start + 1, start + PIECE_CHARACTERS) for space in " \n\t")
    return at if at > start else start + PIECE_CHARACTERS


def _decoded(chunks: Iterator[bytes], name: str, errors: Literal["strict", "replace"]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    offset = 0
    for number, chunk in enumerate(_with_end(chunks)):
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise _not_text(name, offset - pending + error.start, "is not UTF-8") from error
        if "\0" in text:
            if errors == "strict":
                raise _not_text(name, offset - pending + len(text[: text.index("\0")].encode()), "is NUL: binary data?")
            text = text.replace("\0", "\ufffd")
        offset += len(chunk)
        yield text.removeprefix("\ufeff") if number == 0 else text


def _with_end(chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield from chunks
    yield b""


def _not_text(name: str, offset: int, what: str) -> ValueError:
    return ValueError(f"{name}: byte {offset} {what}; mend the file, or pass --errors replace to go on without it")


def _json_documents(file: IO[bytes], name: str, config: ReadingConfig) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield _field(_json_object(line, f"{name}, line {number}", config.errors), f"{name}, line {number}", config)


def _json_object(line: bytes, where: str, errors: Literal["strict", "replace"]) -> dict[str, Any]:
    try:
        record = json.loads(line.removeprefix(codecs.BOM_UTF8).decode("utf-8", errors))
    except UnicodeDecodeError as error:
        raise _not_text(where, error.start, "is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error}); every line must be one object") from error
    if not isinstance(record, dict):
        raise ValueError(f"{where}: {type(record).__name__}, not an object; every line must be one")
    return record


def _field(record: dict[str, Any], where: str, config: ReadingConfig) -> str:
    """The text of a record; null is no text. Half of a surrogate pair, which JSON can spell, is no character."""
    if config.text_field not in record:
        there = ", ".join(record)
        raise ValueError(f"{where}: nothing under {config.text_field!r} (there is: {there}); set --text-field")
    text = record[config.text_field]
    if text is None:
        return ""
    if isinstance(text, bytes):
        return _decoded_field(text, where, config)
    if not isinstance(text, str):
        raise ValueError(f"{where}: {config.text_field!r} is {type(text).__name__}, not text; set --text-field")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if config.errors == "strict":
            raise _not_text(where, error.start, "of the text is half a character") from error
        return clean(text)
    return text


def clean(text: str) -> str:
    """Without halves of characters, which Python's strings can hold and text cannot."""
    return text.encode("utf-8", "replace").decode()


def _decoded_field(text: bytes, where: str, config: ReadingConfig) -> str:
    try:
        return text.decode("utf-8", config.errors)
    except UnicodeDecodeError as error:
        raise _not_text(where, error.start, "of the text is not UTF-8") from error


def _parquet_documents(file: IO[bytes], name: str, config: ReadingConfig) -> Iterator[str]:
    from pyarrow.parquet import ParquetFile

    column = config.text_field

    try:
        table = ParquetFile(file)
        if column not in table.schema_arrow.names:
            raise ValueError(
                f"{name}: no column {column!r} (there is: {', '.join(table.schema_arrow.names)}); set --text-field"
            )
        batches = table.iter_batches(batch_size=256, columns=[column])
        values = (value for batch in batches for value in _undecoded(batch.column(0)).to_pylist())
        for number, value in enumerate(values, 1):
            yield _field({column: value}, f"{name}, row {number}", config)
    except UnreachableError:
        raise
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{name}: damaged or no parquet file ({error}); replace the file") from error


def _undecoded(values: pyarrow.Array) -> pyarrow.Array:
    """Strings as bytes: they may not be the UTF-8 they claim to be."""
    is_text = pyarrow.types.is_string(values.type) or pyarrow.types.is_large_string(values.type)
    return values.cast(pyarrow.large_binary()) if is_text else values


def _hub_documents(source: str, config: ReadingConfig) -> Iterator[str]:
    for number, row in enumerate(_hub_rows(source), 1):
        yield _field(row, f"{source}, row {number}", config)


def _hub_rows(source: str) -> Iterator[dict[str, Any]]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError(f"{source}: reading the Hub needs `pip install 'elektron[hf]'`") from error
    name, part, split = _hub_parts(source)
    try:
        try:
            rows = load_dataset(name, part, split=split, streaming=True)
        except FileNotFoundError:
            if part or name.count("/") != 1 or name.startswith((".", "/")):
                raise
            rows = load_dataset(*name.split("/"), split=split, streaming=True)  # not OWNER/NAME, but NAME/CONFIG
        yield from rows
    except OSError:
        raise
    except Exception as error:  # its readers raise what they like
        raise ValueError(f"{source}: the datasets library cannot read it ({error})") from error


def _hub_parts(source: str) -> tuple[str, str | None, str]:
    """hf:NAME[/CONFIG][:SPLIT]; NAME is OWNER/DATASET, or a local folder beginning with '.' or '/'."""
    name, _, split = source.removeprefix(HUB).partition(":")
    if name.startswith((".", "/")):
        return name, None, split or "train"
    owner_and_name, config = name.split("/")[:2], "/".join(name.split("/")[2:])
    return "/".join(owner_and_name), config or None, split or "train"
