"""elektron prepare: turn text into shards of tokens, with a tokenizer trained on it or a given one. Several workers, on
any machines, make the folder together that one would make alone."""

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

from elektron.config import overlay, parse, read_toml, split_files
from elektron.data import corpus, tokenizer
from elektron.data.corpus import ReadingConfig
from elektron.data.files import as_json
from elektron.data.prepare import ALONE, ShardsConfig, Share, refuse_other, write_share, write_tokenizer
from elektron.data.shards import INDEX, Index
from elektron.data.storage import Local, Place, Storage, storage
from elektron.data.tokenizer import Tokenizer, TokenizerConfig

RECIPE = "tokenizer.recipe.json"
UNFIT = 0.005
"""Share of unknown tokens above which a tokenizer does not fit the text."""


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(ReadingConfig, TokenizerConfig, ShardsConfig):
    """Reading, tokenizer and shards."""

    def __post_init__(self) -> None:
        TokenizerConfig.__post_init__(self)
        ShardsConfig.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class Config(PrepareConfig):
    """elektron prepare"""

    corpus: tuple[str, ...] = ()
    """Files, folders and globs of .txt, .jsonl and .parquet, plain or compressed (.gz .bz2 .xz .zst);
    hf:OWNER/NAME[/CONFIG][:SPLIT]; '-' for standard input; builtin:python-docs."""
    out: str = "data"
    """Folder to write, or its URL (s3://BUCKET/FOLDER)."""
    worker: int = 0
    """Which of the workers this is, counted from 0. They share nothing but --out; start them as you like, and those
    that died again. The one that finds all shards there writes index.json."""
    workers: int = 1
    """How many workers prepare this corpus. Each reads all of it and tokenises its share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.worker < self.workers:
            raise ValueError(f"--worker {self.worker} --workers {self.workers}: workers are counted from 0")


def main(arguments: Sequence[str]) -> None:
    files, flags = split_files(arguments)
    config = Config()
    for file in files:
        config = overlay(config, read_toml(file), str(file))
    config = parse(config, flags, "elektron prepare [FILE.toml ...]", __doc__ or "")
    prepare(config.corpus, config.out, config, Share(config.worker, config.workers))


def prepare(specs: Sequence[str], out: Place, config: PrepareConfig, share: Share = ALONE) -> Index | None:
    """Make a folder of shards, or complete one; or a worker's share of it, and the index if that was the last."""
    sources, folder = corpus.sources(specs), storage(out, share.writer)
    if corpus.STDIN in sources and share.workers > 1:
        raise ValueError("standard input has one reader: give several workers files")
    with folder.occupied():
        return _prepare(sources, folder, config, share, Console(highlight=False, soft_wrap=True))


def _prepare(
    sources: list[str], folder: Storage, config: PrepareConfig, share: Share, console: Console
) -> Index | None:
    if config.tokenizer == "train" and corpus.STDIN in sources:
        sources = [_spooled(folder) if source == corpus.STDIN else source for source in sources]
    chosen = _tokenizer(sources, folder, config, share, console)
    start, total = time.perf_counter(), 0
    columns = TextColumn("tokenising"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=corpus.estimated_bytes(sources) or None)

        def advance(text_bytes: int) -> None:
            nonlocal total
            total += text_bytes
            progress.advance(bar, text_bytes)

        written = write_share(corpus.pieces(sources, config), chosen, folder, config, share, advance)
    if share.workers > 1:
        console.print(f"worker {share.worker} of {share.workers}: its {written.shards:,} shards are written")
    if not written.index:
        console.print(f"{folder}: {written.missing:,} shards of other workers are still to come, or of other text")
        return None
    _print_summary(console, written.index, str(folder), total, time.perf_counter() - start)
    for warning in _warnings(written.index, config):
        console.print(f"[yellow]{warning}[/]")
    return written.index


def _spooled(folder: Storage) -> str:
    """Standard input in a file: a tokenizer is trained on the text before it is used on it."""
    if not isinstance(folder, Local):
        raise ValueError(f"standard input is kept in --out to train a tokenizer on, and {folder} is not here")
    (folder.path / "stdin.txt").unlink(missing_ok=True)  # it may be a link
    with open(folder.path / "stdin.txt", "xb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return str(folder.path / "stdin.txt")


def _tokenizer(sources: list[str], folder: Storage, config: PrepareConfig, share: Share, console: Console) -> Tokenizer:
    """The one that was asked for. A trained one is kept with what it was trained on and how: in a folder that is
    finished it stays, even if the text has grown since; in one that is not, it is trained again for other text.
    Training is a function of the text, so that workers who begin at once all train the same."""
    if config.tokenizer != "train":
        return tokenizer.load(config.tokenizer, config)
    before, old = _trained_before(folder)
    recipe = {field.name: getattr(config, field.name) for field in fields(TokenizerConfig)}
    if old and folder.exists(INDEX):
        changed = {name for name in recipe if before.get(name) != recipe[name]}
        if changed:
            names = " and ".join(sorted(changed))
            raise ValueError(f"{folder} has a tokenizer that was trained with another {names}; choose another folder")
        return old
    recipe["text"] = _digest(sources, config)
    if old and before == recipe:
        return old
    console.print(f"training a tokenizer of {config.vocab_size:,} tokens")
    new = tokenizer.train(lambda: _sample(sources, config), config)
    refuse_other(folder, new, config)
    write_tokenizer(folder, new, share)
    folder.write(RECIPE, as_json(recipe | {"sha256": new.hash}))
    return new


def _trained_before(folder: Storage) -> tuple[dict[str, object], Tokenizer | None]:
    """How the tokenizer in the folder was trained, and it; nothing if it came from elsewhere."""
    if not folder.exists(RECIPE) or not folder.exists(tokenizer.FILE):
        return {}, None
    try:
        recipe, found = json.loads(folder.read(RECIPE)), Tokenizer(folder.read(tokenizer.FILE).decode())
    except ValueError as error:
        raise ValueError(f"{folder}: {RECIPE} or {tokenizer.FILE} is damaged ({error}); remove them") from error
    return (recipe, found) if recipe.pop("sha256", "") == found.hash else ({}, None)


def _sample(sources: list[str], config: PrepareConfig) -> Iterator[str]:
    """Text to train a tokenizer on: every n-th document, so that all parts of a large corpus are heard."""
    budget = config.sample_megabytes * 1_000_000
    stride = max(1, -(-corpus.estimated_bytes(sources) // budget))
    number, used = 0, 0
    for text, ends in corpus.pieces(sources, config):
        if number % stride == 0:
            yield text
            used += len(text)
        if used >= budget:
            return
        number += ends


def _digest(sources: list[str], config: PrepareConfig) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in _sample(sources, config):
        digest.update(text.encode("utf-8", "replace"))
    return digest.hexdigest()


def _print_summary(console: Console, index: Index, out: str, text_bytes: int, seconds: float) -> None:
    tokens = index.train_tokens + index.held_tokens
    console.print(
        f"{out}: {index.documents:,} documents, {tokens:,} tokens ({text_bytes / tokens:.2f} bytes each, "
        f"{index.unknown / tokens:.3%} unknown), {index.held_tokens:,} of them held out, vocabulary "
        f"{index.vocab_size:,}; {text_bytes / 1e6:,.1f} MB in {seconds:.1f} s"
    )


def _warnings(index: Index, config: PrepareConfig) -> Iterator[str]:
    if index.unknown > UNFIT * (index.train_tokens + index.held_tokens):
        yield "many unknown tokens: this tokenizer does not fit the text (its case? its language?)"
    if config.tokenizer == "train" and index.vocab_size < config.vocab_size:
        asked = f"{config.vocab_size:,} tokens asked for"
        yield f"the text gave only {index.vocab_size:,} of the {asked}: there is little of it"
