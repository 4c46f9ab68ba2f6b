"""A corpus written as shards, by all cores, in the same bytes however many they are.

The text is dealt out in blocks of about BLOCK_BYTES, cut where the text says and never by the number of workers; a
worker tokenises a block and writes its shard. A shard names the text and the tokenizer it was made from, so a second
run skips what is done; files appear under their name only when whole, and index.json comes last.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elektron.data.corpus import Piece
from elektron.data.files import sealed, write_atomically, write_json
from elektron.data.shards import INDEX, VERSION, Index, Shard, finished_shard, read_index, read_shard, write_shard
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
    workers: int = os.cpu_count() or 1
    """Processes that tokenise."""

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ValueError(f"--held-out lies in [0, 1), not {self.held_out}")
        if self.workers < 1:
            raise ValueError(f"--workers must be at least 1, not {self.workers}")


class _Block(NamedTuple):
    number: int
    text_bytes: int
    made_from: bytes
    pieces: list[tuple[str, bool, bool]]
    """(text, ends its document, is held out)"""


def write_shards(
    pieces: Iterable[Piece],
    tokenizer: Tokenizer,
    folder: Path,
    config: ShardsConfig,
    progress: Callable[[int], object] = lambda text_bytes: None,
) -> Index:
    """Tokenise a corpus into a folder. `progress` is told the bytes of text as they are dealt out."""
    refuse_other(folder, tokenizer, config)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / TOKENIZER_FILE, tokenizer.json.encode())
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(config.workers, context, _start_worker, (tokenizer.json, tokenizer.names)) as pool:
        try:
            shards = _write_all(_blocks(pieces, tokenizer, config), folder, pool, config.workers, progress)
        except BrokenProcessPool as error:
            raise OSError("a worker process died (out of memory?); what is done is kept: run it again") from error
    if not any(shard.tokens for shard in shards):
        raise ValueError("the corpus is empty: there is no text in it")
    return _write_index(folder, _something_held_out(shards, folder), tokenizer, config)


def refuse_other(folder: Path, tokenizer: Tokenizer, config: ShardsConfig) -> None:
    """A finished folder may be brought up to date with its corpus, not turned into another one under a run's feet."""
    try:
        index = read_index(folder)
    except ValueError:  # there is none that could be read
        return
    if index.tokenizer_sha256 != tokenizer.hash:
        raise ValueError(f"{folder} holds shards of another tokenizer; choose another folder or remove this one")
    if index.held_out != config.held_out:
        raise ValueError(
            f"{folder} was made with --held-out {index.held_out}; choose another folder for {config.held_out}"
        )


def _blocks(pieces: Iterable[Piece], tokenizer: Tokenizer, config: ShardsConfig) -> Iterator[_Block]:
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
            yield _Block(number, text_bytes, digest.digest(), inside)
            number, text_bytes = number + 1, 0
            digest, inside = hashlib.blake2b(recipe, digest_size=16), []
    if inside:
        yield _Block(number, text_bytes, digest.digest(), inside)


def _is_held_out(text: bytes, share: float) -> bool:
    """By the text's own hash: the same document falls on the same side wherever and however often it stands."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") < share * 2**64


def _write_all(
    blocks: Iterator[_Block], folder: Path, pool: ProcessPoolExecutor, workers: int, progress: Callable[[int], object]
) -> list[Shard]:
    """Keep every worker busy and one block waiting, no more: memory does not grow with the corpus."""
    shards: list[Shard | Future[Shard]] = []
    unfinished: list[Future[Shard]] = []
    for block in blocks:
        path = folder / f"shard-{block.number:05d}.bin"
        shard = finished_shard(path, block.made_from)
        if shard is None:
            (folder / INDEX).unlink(missing_ok=True)
            unfinished.append(pool.submit(_tokenise, path, block))
        shards.append(shard or unfinished[-1])
        progress(block.text_bytes)
        if len(unfinished) > workers:
            unfinished.pop(0).result()
    return [shard if isinstance(shard, Shard) else shard.result() for shard in shards]


_tokenizer: Tokenizer
"""The worker's own."""


def _start_worker(tokenizer_json: str, names: dict[str, str]) -> None:
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


def _tokenise(path: Path, block: _Block) -> Shard:
    (train, train_ends), (held, held_ends) = (
        _encode([piece for piece in block.pieces if piece[2] is held], _tokenizer) for held in (False, True)
    )
    tokens, ends = np.concatenate([train, held]), np.concatenate([train_ends, held_ends + len(train)])
    return write_shard(path, tokens, ends, len(train), _tokenizer, block.made_from)


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


def _something_held_out(shards: list[Shard], folder: Path) -> list[Shard]:
    """Where chance held nothing out, or everything: the last document, or the tail of the only one. The index moves the
    border."""
    tokens, train = sum(shard.tokens for shard in shards), sum(shard.train_tokens for shard in shards)
    if 0 < train < tokens:
        return shards
    shards = [replace(shard, train_tokens=shard.tokens) for shard in shards]
    at = max(i for i, shard in enumerate(shards) if shard.tokens)
    tokens, ends = read_shard(folder / shards[at].file)
    begins = ends[(ends > 0) & (ends < len(tokens))]
    border = int(begins[-1]) if len(begins) else len(tokens) - max(1, round(TAIL * len(tokens)))
    return [*shards[:at], replace(shards[at], train_tokens=border), *shards[at + 1 :]]


def _write_index(folder: Path, shards: list[Shard], tokenizer: Tokenizer, config: ShardsConfig) -> Index:
    train = sum(shard.train_tokens for shard in shards)
    if not train:
        raise ValueError("the corpus is too small: nothing is left to train on beside the held-out text")
    index = Index(
        version=VERSION,
        vocab_size=tokenizer.vocab_size,
        tokenizer_sha256=tokenizer.hash,
        special_tokens=tokenizer.names,
        held_out=config.held_out,
        train_tokens=train,
        held_tokens=sum(shard.tokens for shard in shards) - train,
        documents=sum(shard.documents for shard in shards),
        unknown=sum(shard.unknown for shard in shards),
        shards=tuple(shards),
    )
    write_json(folder / INDEX, sealed(asdict(index)))
    for stale in set(folder.glob("shard-*.bin")) - {folder / shard.file for shard in shards}:
        stale.unlink()
    return index
