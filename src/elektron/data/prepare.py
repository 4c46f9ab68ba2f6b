"""A corpus written as shards, by all cores and by many machines, in the same bytes however many they are.

The text is dealt out in blocks of about BLOCK_BYTES, cut where the text says and never by who works on it; a process
tokenises a block and writes its shard. A shard names the text and the tokenizer it was made from, so a second run skips
what is done; files appear under their name only when whole, and index.json comes last.

Workers on several machines need nothing of one another but the folder. Each reads all of the text and tokenises every
n-th block. Whoever finds all shards there, the others' too, writes index.json: it is the same whoever does, and however
many do at once.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from typing import NamedTuple

import numpy as np

from elektron.data.corpus import Piece
from elektron.data.files import as_json, sealed
from elektron.data.shards import INDEX, VERSION, Index, Shard, finished_shard, parse_shard, read_index, write_shard
from elektron.data.storage import Place, Storage, storage
from elektron.data.tokenizer import FILE as TOKENIZER_FILE
from elektron.data.tokenizer import Tokenizer

BLOCK_BYTES = 16 << 20
BATCH_CHARACTERS = 1 << 19
"""Text given to the tokenizer at a time: its encodings take a hundred times the memory of the ids."""
TAIL = 0.05
"""Share of the last shard that is held out when the corpus is a single document."""


@dataclass(frozen=True, kw_only=True)
class ShardsConfig:
    """How the stream is written."""

    held_out: float = 0.005
    """Share of the documents kept out of training, chosen by the hash of their text; at least one is."""
    processes: int = os.cpu_count() or 1
    """Processes that tokenise, on this machine."""

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ValueError(f"--held-out lies in [0, 1), not {self.held_out}")
        if self.processes < 1:
            raise ValueError(f"--processes must be at least 1, not {self.processes}")


class Share(NamedTuple):
    """What a worker does of the work: every `workers`-th block, beginning with number `worker`."""

    worker: int
    workers: int

    @property
    def writer(self) -> str:
        """Its name in the folder, if there are others."""
        return f"{self.worker}-of-{self.workers}" if self.workers > 1 else ""


ALONE = Share(worker=0, workers=1)


@dataclass(frozen=True)
class Written:
    """What came of a worker's share."""

    shards: int
    """How many are its own."""
    missing: int
    """How many of the others' are not there yet, or are of other text."""
    index: Index | None
    """There once nothing is missing."""


class Block(NamedTuple):
    number: int
    text_bytes: int
    made_from: bytes
    pieces: list[tuple[str, bool, bool]]
    """(text, ends its document, is held out)"""


def write_shards(
    pieces: Iterable[Piece],
    tokenizer: Tokenizer,
    place: Place,
    config: ShardsConfig,
    progress: Callable[[int], object] = lambda text_bytes: None,
) -> Index:
    """Tokenise a corpus into a folder. `progress` is told the bytes of text as they are dealt out."""
    folder = storage(place)
    with folder.occupied():
        index = write_share(pieces, tokenizer, folder, config, ALONE, progress).index
    assert index, f"{place}: a shard is missing that was just written"
    return index


def write_share(
    pieces: Iterable[Piece],
    tokenizer: Tokenizer,
    folder: Storage,
    config: ShardsConfig,
    share: Share,
    progress: Callable[[int], object] = lambda text_bytes: None,
) -> Written:
    """A worker's part of `write_shards`: its own shards, and the index if the others' are there."""
    if str(folder).startswith("memory://"):
        raise ValueError(f"{folder}: memory is one process's own, and shards are written by several")
    refuse_other(folder, tokenizer, config)
    write_tokenizer(folder, tokenizer, share)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(config.processes, context, _start_process, (tokenizer.json, tokenizer.names)) as pool:
        try:
            blocks = dealt_blocks(pieces, tokenizer, config)
            found = _write_own(blocks, folder, pool, config.processes, share, progress)
        except BrokenProcessPool as error:
            raise OSError("a worker process died (out of memory?); what is done is kept: run it again") from error
    own = sum(isinstance(shard, Shard) for shard in found)
    shards, missing = _with_others(found, folder)
    if missing:
        return Written(own, missing, None)
    return Written(own, 0, write_index(folder, shards, tokenizer, config.held_out))


def write_tokenizer(folder: Storage, tokenizer: Tokenizer, share: Share) -> None:
    """Put it into the folder, where workers agree on one. Who is alone may begin anew with another."""
    content = tokenizer.json.encode()
    try:
        found = folder.read(TOKENIZER_FILE)
    except FileNotFoundError:
        found = b""
    if found and found != content and share.workers > 1:
        raise ValueError(
            f"{folder} has another {TOKENIZER_FILE}: all workers need the same corpus, settings and versions. To go on "
            f"with the one that is there, pass --tokenizer {folder}/{TOKENIZER_FILE}; else choose another folder"
        )
    if found != content:
        folder.write(TOKENIZER_FILE, content)


def refuse_other(folder: Storage, tokenizer: Tokenizer, config: ShardsConfig) -> None:
    """A finished folder may be brought up to date with its corpus, not turned into another one under a run's feet."""
    try:
        index = read_index(str(folder))
    except ValueError:  # there is none that could be read
        return
    if index.tokenizer_sha256 != tokenizer.hash:
        raise ValueError(f"{folder} holds shards of another tokenizer; choose another folder or remove this one")
    if index.held_out != config.held_out:
        raise ValueError(
            f"{folder} was made with --held-out {index.held_out}; choose another folder for {config.held_out}"
        )


def dealt_blocks(pieces: Iterable[Piece], tokenizer: Tokenizer, config: ShardsConfig) -> Iterator[Block]:
    """The corpus in blocks, each named by a digest of all that decides its shard."""
    recipe = json.dumps([VERSION, tokenizer.hash, config.held_out]).encode()
    number, text_bytes, held, begins = 0, 0, False, True
    digest, inside = hashlib.blake2b(recipe, digest_size=16), []
    for text, ends in pieces:
        data = text.encode("utf-8", "replace")
        if begins:
            held = _is_held_out(data, config.held_out)
        begins = ends
        digest.update(struct.pack("<Q??", len(data), ends, held) + data)
        inside.append((text, ends, held))
        text_bytes += len(data)
        if text_bytes >= BLOCK_BYTES:
            yield Block(number, text_bytes, digest.digest(), inside)
            number, text_bytes = number + 1, 0
            digest, inside = hashlib.blake2b(recipe, digest_size=16), []
    if inside:
        yield Block(number, text_bytes, digest.digest(), inside)


def _is_held_out(text: bytes, share: float) -> bool:
    """By the text's own hash: the same document falls on the same side wherever and however often it stands."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") < share * 2**64


def shard_file(number: int) -> str:
    return f"shard-{number:05d}.bin"


def _write_own(
    blocks: Iterator[Block],
    folder: Storage,
    pool: ProcessPoolExecutor,
    processes: int,
    share: Share,
    progress: Callable[[int], object],
) -> list[Shard | bytes]:
    """The shards of the own blocks, and what those of the others are to be made from. Every process is kept busy and
    one block waiting, no more: memory does not grow with the corpus."""
    found: list[Shard | Future[Shard] | bytes] = []
    unfinished: list[Future[Shard]] = []
    for block in blocks:
        progress(block.text_bytes)
        if block.number % share.workers != share.worker:
            found.append(block.made_from)
            continue
        shard = finished_shard(folder, shard_file(block.number), block.made_from)
        if shard is None:
            folder.remove(INDEX)
            unfinished.append(pool.submit(_tokenise, folder, block))
        found.append(shard or unfinished[-1])
        if len(unfinished) > processes:
            unfinished.pop(0).result()
    return [shard.result() if isinstance(shard, Future) else shard for shard in found]


def _with_others(found: list[Shard | bytes], folder: Storage) -> tuple[list[Shard], int]:
    """All shards, if the others' are there too; how many of them are not."""
    there = set(folder.names())
    missing = sum(isinstance(shard, bytes) and shard_file(number) not in there for number, shard in enumerate(found))
    if missing:
        return [], missing

    def look(number: int) -> Shard | None:
        shard = found[number]
        return shard if isinstance(shard, Shard) else finished_shard(folder, shard_file(number), shard)

    with ThreadPoolExecutor() as pool:
        shards = [shard for shard in pool.map(look, range(len(found))) if shard]
    return shards, len(found) - len(shards)


_tokenizer: Tokenizer
"""The process's own."""


def _start_process(tokenizer_json: str, names: dict[str, str]) -> None:
    global _tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _tokenizer = Tokenizer(tokenizer_json, names)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _tokenise(folder: Storage, block: Block) -> Shard:
    return tokenise(block, _tokenizer, folder, shard_file(block.number))


def tokenise(block: Block, tokenizer: Tokenizer, folder: Storage, file: str) -> Shard:
    """Write the shard of a block."""
    (train, train_ends), (held, held_ends) = (
        _encode([piece for piece in block.pieces if piece[2] is held], tokenizer) for held in (False, True)
    )
    tokens, ends = np.concatenate([train, held]), np.concatenate([train_ends, held_ends + len(train)])
    return write_shard(folder, file, tokens, ends, len(train), tokenizer, block.made_from)


def _encode(pieces: list[tuple[str, bool, bool]], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of the pieces in order, and where documents end among them; one without a token leaves no end."""
    parts, lengths, batch, characters = [np.empty(0, np.uint32)], [np.empty(0, np.int64)], [], 0
    for number, (text, *_) in enumerate(pieces, 1):
        batch.append(text)
        characters += len(text)
        if characters >= BATCH_CHARACTERS or number == len(pieces):
            ids, counts = tokenizer.encode(batch)
            parts.append(ids)
            lengths.append(counts)
            batch, characters = [], 0
    is_end = np.array([ends for _, ends, _ in pieces], dtype=bool)
    return np.concatenate(parts), np.unique(np.cumsum(np.concatenate(lengths))[is_end])


def _something_held_out(shards: list[Shard], folder: Storage) -> list[Shard]:
    """Where chance held nothing out, or everything: the last document, or the tail of the only one. The index moves the
    border."""
    tokens, train = sum(shard.tokens for shard in shards), sum(shard.train_tokens for shard in shards)
    if 0 < train < tokens:
        return shards
    shards = [replace(shard, train_tokens=shard.tokens) for shard in shards]
    at = max(i for i, shard in enumerate(shards) if shard.tokens)
    tokens, ends = parse_shard(folder.read(shards[at].file), f"{folder}/{shards[at].file}")
    begins = ends[(ends > 0) & (ends < len(tokens))]
    border = int(begins[-1]) if len(begins) else len(tokens) - max(1, round(TAIL * len(tokens)))
    return [*shards[:at], replace(shards[at], train_tokens=border), *shards[at + 1 :]]


def write_index(folder: Storage, shards: list[Shard], tokenizer: Tokenizer, held_out: float) -> Index:
    """Finish a folder in which all shards and the tokenizer are; shards of no use to it are removed."""
    if not any(shard.tokens for shard in shards):
        raise ValueError("the corpus is empty: there is no text in it")
    shards = _something_held_out(shards, folder)
    train = sum(shard.train_tokens for shard in shards)
    if not train:
        raise ValueError("the corpus is too small: nothing is left to train on beside the held-out text")
    index = Index(
        version=VERSION,
        vocab_size=tokenizer.vocab_size,
        tokenizer_sha256=tokenizer.hash,
        special_tokens=tokenizer.names,
        held_out=held_out,
        train_tokens=train,
        held_tokens=sum(shard.tokens for shard in shards) - train,
        documents=sum(shard.documents for shard in shards),
        unknown=sum(shard.unknown for shard in shards),
        shards=tuple(shards),
    )
    folder.write(INDEX, as_json(sealed(asdict(index))))
    kept = {shard.file for shard in shards}
    for file in folder.names():
        if fnmatch(file, "shard-*.bin") and file not in kept:
            folder.remove(file)
    return index
