"""Shards: the corpus as one stream of tokens with document ends, on disk, memory-mapped, checksummed.

    DATA/  index.json  tokenizer.json  shard-00000.bin  shard-00001.bin ...

A shard file holds a header; `ends`, where each document ends in tokens from the start of the shard (int64); and the
tokens (uint16, or uint32 for large vocabularies), first the training documents, then the held-out ones. Rows of any
length are cut from the stream when they are needed, so phases of different length share one set of shards.
"""

import hashlib
import re
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from elektron.data.cache import cache_folder, copied
from elektron.data.files import fields_of, parsed_json, sha256, unsealed
from elektron.data.storage import Place, Remote, Storage, local_path, storage
from elektron.data.tokenizer import FILE as TOKENIZER_FILE
from elektron.data.tokenizer import Tokenizer

INDEX = "index.json"
MAGIC, VERSION = b"ELEKTRON", 1
_LAYOUT = struct.Struct("<8sIIQQQQ16s16s")
_FILE, _SHA256 = re.compile(r"shard-[0-9-]+\.bin"), re.compile(r"[0-9a-f]{64}")
"""What an index may name: nothing that lies in another folder."""
_TOKEN_TYPES = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


class Header(NamedTuple):
    """The first bytes of a shard."""

    magic: bytes
    version: int
    token_bytes: int
    tokens: int
    train_tokens: int
    documents: int
    unknown: int
    made_from: bytes
    """Digest of the text, the tokenizer and the settings."""
    payload: bytes
    """Digest of all that follows the header."""


@dataclass(frozen=True)
class Shard:
    """One file of the index."""

    file: str
    bytes: int
    sha256: str
    tokens: int
    train_tokens: int
    documents: int
    unknown: int


@dataclass(frozen=True)
class Index:
    """What index.json says."""

    version: int
    vocab_size: int
    tokenizer_sha256: str
    special_tokens: dict[str, str]
    held_out: float
    train_tokens: int
    held_tokens: int
    documents: int
    unknown: int
    shards: tuple[Shard, ...]

    @property
    def digest(self) -> str:
        """Names what is trained on: tokens, documents, and which of them are held out."""
        parts = [self.tokenizer_sha256, *(f"{shard.sha256} {shard.train_tokens}" for shard in self.shards)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def write_shard(
    folder: Storage,
    file: str,
    tokens: np.ndarray,
    ends: np.ndarray,
    train_tokens: int,
    tokenizer: Tokenizer,
    made_from: bytes,
) -> Shard:
    token_bytes = 2 if tokenizer.vocab_size <= 1 << 16 else 4
    payload = ends.astype("<i8").tobytes() + tokens.astype(_TOKEN_TYPES[token_bytes]).tobytes()
    header = Header(
        magic=MAGIC,
        version=VERSION,
        token_bytes=token_bytes,
        tokens=len(tokens),
        train_tokens=train_tokens,
        documents=len(ends),
        unknown=int((tokens == tokenizer.specials.unk).sum()),
        made_from=made_from,
        payload=_digest(payload),
    )
    content = _LAYOUT.pack(*header) + payload
    folder.write(file, content)
    return _describe(file, header, content)


def finished_shard(folder: Storage, file: str, made_from: bytes) -> Shard | None:
    """The shard of that name, if it is whole, sound and made from the same text in the same way."""
    try:
        content = folder.read(file)
        header = _header(content, len(content), file)
    except (ValueError, FileNotFoundError):
        return None
    sound = header.made_from == made_from and _digest(memoryview(content)[_LAYOUT.size :]) == header.payload
    return _describe(file, header, content) if sound else None


def _describe(file: str, header: Header, content: bytes) -> Shard:
    return Shard(
        file=file,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        tokens=header.tokens,
        train_tokens=header.train_tokens,
        documents=header.documents,
        unknown=header.unknown,
    )


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _header(data: bytes, size: int, name: str) -> Header:
    """What the first bytes of a file of `size` bytes say."""
    if len(data) < _LAYOUT.size or not data.startswith(MAGIC):
        raise ValueError(f"{name}: not a shard (no {MAGIC.decode()} at its start); run `elektron prepare` again")
    header = Header(*_LAYOUT.unpack_from(data))
    if header.version != VERSION:
        raise ValueError(f"{name}: version {header.version}, this Elektron reads {VERSION}; prepare the data again")
    if header.token_bytes not in _TOKEN_TYPES:
        raise ValueError(f"{name}: damaged (tokens of {header.token_bytes} bytes); run `elektron prepare` again")
    expected = _LAYOUT.size + 8 * header.documents + header.token_bytes * header.tokens
    if size != expected:
        raise ValueError(f"{name}: {size} bytes instead of {expected}: truncated; run `elektron prepare` again")
    return header


def _read_header(path: Path) -> Header:
    with open(path, "rb") as file:
        return _header(file.read(_LAYOUT.size), path.stat().st_size, str(path))


def read_shard(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The tokens and the documents' ends, memory-mapped."""
    return _contents(_read_header(path), np.memmap(path, np.uint8, "r", _LAYOUT.size))


def parse_shard(content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The tokens and the documents' ends of a shard in memory."""
    return _contents(_header(content, len(content), name), np.frombuffer(content, np.uint8, offset=_LAYOUT.size))


def _contents(header: Header, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    border = 8 * header.documents
    return data[border:].view(_TOKEN_TYPES[header.token_bytes]), data[:border].view("<i8")


def is_prepared(place: Place) -> bool:
    """Whether there is finished data."""
    return storage(place).exists(INDEX)


def read_index(place: Place) -> Index:
    folder = storage(place)
    try:
        content = folder.read(INDEX)
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no prepared data (no {INDEX}): make some with `elektron prepare`") from None
    try:
        return _index(content, f"{folder}/{INDEX}")
    except ValueError as error:
        raise ValueError(f"{error}; run `elektron prepare` again") from error


def _index(content: bytes, name: str) -> Index:
    record = parsed_json(content, name)
    if isinstance(record, dict) and record.get("version") != VERSION:
        raise ValueError(f"{name}: version {record.get('version')}, this Elektron reads {VERSION}")
    record = fields_of(unsealed(record, name), [f.name for f in fields(Index)], name)
    record["shards"] = tuple(Shard(**fields_of(s, [f.name for f in fields(Shard)], name)) for s in record["shards"])
    for shard in record["shards"]:
        if not _FILE.fullmatch(str(shard.file)) or not _SHA256.fullmatch(str(shard.sha256)):
            raise ValueError(f"{name}: names {shard.file!r}, which is no shard in this folder")
    return Index(**record)


class Stream:
    """Tokens in parts, as if they were one array; past its end it begins again."""

    def __init__(self, parts: Sequence[np.ndarray], ends: np.ndarray) -> None:
        """Of parts that are not empty; `ends` is where documents end, in tokens from the first of all."""
        self._parts, self._ends = parts, ends
        self._starts = np.cumsum([0] + [len(part) for part in parts])
        self.tokens = int(self._starts[-1])

    def read(self, starts: np.ndarray, count: int) -> np.ndarray:
        """`count` tokens from each start: [B, count]. Rows inside one shard are gathered together."""
        rows = np.empty((len(starts), count), np.int64)
        parts = np.searchsorted(self._starts, starts, side="right") - 1
        inside = starts + count <= self._starts[parts + 1]
        for part in np.unique(parts[inside]):
            here = inside & (parts == part)
            rows[here] = self._parts[part][(starts[here] - self._starts[part])[:, None] + np.arange(count)]
        for i in np.flatnonzero(~inside):
            rows[i] = self._read_across(int(starts[i]), count)
        return rows

    def _read_across(self, start: int, count: int) -> np.ndarray:
        row, filled = np.empty(count, np.int64), 0
        while filled < count:
            position = (start + filled) % self.tokens
            part = int(np.searchsorted(self._starts, position, side="right")) - 1
            offset = position - int(self._starts[part])
            piece = self._parts[part][offset : offset + count - filled]
            row[filled : filled + len(piece)] = piece
            filled += len(piece)
        return row

    def ends(self, reach: int) -> np.ndarray:
        """Where documents end in the first `reach` tokens, counted on through the stream's new beginnings."""
        rounds = [self._ends + again * self.tokens for again in range(-(-reach // self.tokens))]
        ends = np.concatenate(rounds)
        return ends[ends <= reach]

    def counts(self, vocab_size: int, limit: int = 1 << 25) -> np.ndarray:
        """How often each token occurs among the first `limit` tokens."""
        counts, left = np.zeros(vocab_size, np.int64), limit
        for part in self._parts:
            counts += np.bincount(part[:left], minlength=vocab_size)
            left -= min(left, len(part))
        return counts


def open_stream(folder: Path, index: Index, split: Literal["train", "held"]) -> Stream:
    """All tokens of one split, shard after shard."""
    parts, ends, total = [], [np.empty(0, np.int64)], 0
    for shard in index.shards:
        start, stop = (0, shard.train_tokens) if split == "train" else (shard.train_tokens, shard.tokens)
        if stop > start:
            tokens, shard_ends = read_shard(folder / shard.file)
            first, last = np.searchsorted(shard_ends, [start, stop], side="right")
            ends.append(shard_ends[first:last] - start + total)
            parts.append(tokens[start:stop])
            total += stop - start
    return Stream(parts, np.concatenate(ends))


@dataclass(frozen=True)
class Data:
    """A prepared folder, opened."""

    index: Index
    tokenizer: Tokenizer
    train: Stream
    held: Stream

    def unigram_loss(self) -> float:
        """Nats a held-out token costs whoever knows the training text's word frequencies and nothing else."""
        train, held = (stream.counts(self.index.vocab_size) for stream in (self.train, self.held))
        log_frequencies = np.log((train + 1) / (train + 1).sum())
        return float(-(held * log_frequencies).sum() / held.sum())


def open_data(place: Place, verify: bool = True) -> Data:
    """Open a prepared folder; every byte of it is checked against its checksum first, unless it is only glanced at.
    What lies behind a URL is copied to this machine's cache, where it stays for the next time."""
    folder, index = storage(place), read_index(place)
    try:
        tokenizer = Tokenizer(folder.read(TOKENIZER_FILE).decode(), index.special_tokens)
    except (FileNotFoundError, ValueError) as error:
        reason = f"{folder}/{TOKENIZER_FILE} is missing or damaged ({error}); run `elektron prepare` again"
        raise ValueError(reason) from error
    if tokenizer.hash != index.tokenizer_sha256:
        raise ValueError(f"{folder}/{TOKENIZER_FILE} is not the tokenizer these shards were made with")
    if isinstance(folder, Remote):
        path, local = _cached(folder, index, verify)
    else:
        path, local = local_path(place), index
        if verify:
            _for_all(index.shards, lambda shard: _verify(path / shard.file, shard))
    return Data(index, tokenizer, open_stream(path, local, "train"), open_stream(path, local, "held"))


def _cached(folder: Remote, index: Index, verify: bool) -> tuple[Path, Index]:
    """Where copies of the shards are, under names by which only the same bytes are known."""
    copies = tuple(replace(shard, file=f"{shard.sha256}.bin") for shard in index.shards)
    files = {shard.sha256: shard.file for shard in index.shards}
    path = cache_folder() / "data"

    def fetch(copy: Shard) -> None:
        file = files[copy.sha256]
        copied(path / copy.file, copy.sha256, f"{folder}/{file}", lambda to: folder.download(file, to), verify)

    _for_all(copies, fetch)
    return path, replace(index, shards=copies)


def _for_all(shards: Sequence[Shard], act: Callable[[Shard], None]) -> None:
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(act, shards))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _verify(path: Path, shard: Shard) -> None:
    if not path.exists():
        raise ValueError(f"{path} is missing; run `elektron prepare` again")
    _read_header(path)
    found = sha256(path)
    if found != shard.sha256:
        raise ValueError(
            f"{path}: damaged (its sha256 is {found[:12]}..., {INDEX} says {shard.sha256[:12]}...); "
            "run `elektron prepare` again"
        )
