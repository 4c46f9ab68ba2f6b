"""Shards: the corpus as one stream of tokens with document ends, on disk, memory-mapped, checksummed.

    DATA/  index.json  tokenizer.json  shard-00000.bin  shard-00001.bin ...

A shard file holds a header; `ends`, where each document ends in tokens from the start of the shard (int64); and the
tokens (uint16, or uint32 for large vocabularies), first the training documents, then the held-out ones. Rows of any
length are cut from the stream when they are needed, so phases of different length share one set of shards.
"""

import hashlib
import re
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from elektron.data.files import fields_of, read_json, sha256, unsealed, write_atomically
from elektron.data.tokenizer import FILE as TOKENIZER_FILE
from elektron.data.tokenizer import Tokenizer, from_json

INDEX = "index.json"
MAGIC, VERSION = b"ELEKTRON", 1
_NAME = re.compile(r"[\w-]+\.bin")
_LAYOUT = struct.Struct("<8sIIQQQQ16s16s")
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
    path: Path, tokens: np.ndarray, ends: np.ndarray, train_tokens: int, tokenizer: Tokenizer, made_from: bytes
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
    write_atomically(path, _LAYOUT.pack(*header), payload)
    return _describe(path, header)


def finished_shard(path: Path, made_from: bytes) -> Shard | None:
    """The shard at `path`, if it is whole, sound and made from the same text in the same way."""
    try:
        header = _read_header(path)
    except (ValueError, FileNotFoundError):
        return None
    sound = header.made_from == made_from and _digest(path.read_bytes()[_LAYOUT.size :]) == header.payload
    return _describe(path, header) if sound else None


def _describe(path: Path, header: Header) -> Shard:
    return Shard(
        file=path.name,
        bytes=path.stat().st_size,
        sha256=sha256(path),
        tokens=header.tokens,
        train_tokens=header.train_tokens,
        documents=header.documents,
        unknown=header.unknown,
    )


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _read_header(path: Path) -> Header:
    size = path.stat().st_size
    with open(path, "rb") as file:
        data = file.read(_LAYOUT.size)
    if len(data) < _LAYOUT.size or not data.startswith(MAGIC):
        raise ValueError(f"{path}: not a shard (no {MAGIC.decode()} at its start); run `elektron prepare` again")
    header = Header(*_LAYOUT.unpack(data))
    if header.version != VERSION:
        raise ValueError(f"{path}: version {header.version}, this Elektron reads {VERSION}; prepare the data again")
    expected = _LAYOUT.size + 8 * header.documents + header.token_bytes * header.tokens
    if size != expected:
        raise ValueError(f"{path}: {size} bytes instead of {expected}: truncated; run `elektron prepare` again")
    return header


def read_shard(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The tokens and the documents' ends, memory-mapped."""
    header = _read_header(path)
    data = np.memmap(path, np.uint8, "r", _LAYOUT.size)
    border = 8 * header.documents
    return data[border:].view(_TOKEN_TYPES[header.token_bytes]), data[:border].view("<i8")


def read_index(folder: Path) -> Index:
    path = folder / INDEX
    if not path.exists():
        raise ValueError(f"{folder} holds no prepared data (no {INDEX}): make some with `elektron prepare`")
    try:
        record = read_json(path)
        if isinstance(record, dict) and record.get("version") != VERSION:
            raise ValueError(f"{path}: version {record.get('version')}, this Elektron reads {VERSION}")
        record = fields_of(unsealed(record, path), [f.name for f in fields(Index)], path)
    except ValueError as error:
        raise ValueError(f"{error}; run `elektron prepare` again") from error
    record["shards"] = tuple(Shard(**fields_of(s, [f.name for f in fields(Shard)], path)) for s in record["shards"])
    outside = [shard.file for shard in record["shards"] if not _NAME.fullmatch(str(shard.file))]
    if outside:
        raise ValueError(f"{path}: names {outside[0]!r}, which is not in this folder; run `elektron prepare` again")
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


def open_data(folder: Path, verify: bool = True) -> Data:
    """Open a prepared folder; every byte of it is checked against its checksum first, unless it is only glanced at."""
    index = read_index(folder)
    tokenizer = from_json(folder / TOKENIZER_FILE, index.special_tokens)
    if tokenizer.hash != index.tokenizer_sha256:
        raise ValueError(f"{folder / TOKENIZER_FILE} is not the tokenizer these shards were made with")
    if verify:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda shard: _verify(folder / shard.file, shard), index.shards))
    return Data(index, tokenizer, open_stream(folder, index, "train"), open_stream(folder, index, "held"))


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
