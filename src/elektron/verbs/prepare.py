"""elektron prepare: turn text into shards of tokens, with a tokenizer trained on it or a given one."""

import hashlib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

from elektron.config import overlay, parse, read_toml, split_files
from elektron.data import corpus, tokenizer
from elektron.data.corpus import ReadingConfig
from elektron.data.files import locked, read_json, write_atomically, write_json
from elektron.data.prepare import ShardsConfig, refuse_other, write_shards
from elektron.data.shards import INDEX, Index
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
    out: Path = Path("data")
    """Folder to write."""


def main(arguments: Sequence[str]) -> None:
    files, flags = split_files(arguments)
    config = Config()
    for file in files:
        config = overlay(config, read_toml(file), str(file))
    config = parse(config, flags, "elektron prepare [FILE.toml ...]", __doc__ or "")
    prepare(config.corpus, config.out, config)


def prepare(specs: Sequence[str], out: Path, config: PrepareConfig) -> Index:
    """Make a folder of shards, or complete one."""
    sources = corpus.sources(specs)
    with locked(out):
        return _prepare(sources, out, config, Console(highlight=False, soft_wrap=True))


def _prepare(sources: list[str], out: Path, config: PrepareConfig, console: Console) -> Index:
    if config.tokenizer == "train" and corpus.STDIN in sources:
        sources = [_spooled(out) if source == corpus.STDIN else source for source in sources]
    chosen = _tokenizer(sources, out, config, console)
    start, total = time.perf_counter(), 0
    columns = TextColumn("tokenising"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=corpus.estimated_bytes(sources) or None)

        def advance(text_bytes: int) -> None:
            nonlocal total
            total += text_bytes
            progress.advance(bar, text_bytes)

        index = write_shards(corpus.pieces(sources, config), chosen, out, config, advance)
    _print_summary(console, index, out, total, time.perf_counter() - start)
    for warning in _warnings(index, config):
        console.print(f"[yellow]{warning}[/]")
    return index


def _spooled(out: Path) -> str:
    """Standard input in a file: a tokenizer is trained on the text before it is used on it."""
    (out / "stdin.txt").unlink(missing_ok=True)  # it may be a link
    with open(out / "stdin.txt", "xb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return str(out / "stdin.txt")


def _tokenizer(sources: list[str], out: Path, config: PrepareConfig, console: Console) -> Tokenizer:
    """The one that was asked for. A trained one is kept with what it was trained on and how: in a folder that is
    finished it stays, even if the text has grown since; in one that is not, it is trained again for other text."""
    if config.tokenizer != "train":
        return tokenizer.load(config.tokenizer, config)
    before, old = _trained_before(out, config)
    recipe = {field.name: getattr(config, field.name) for field in fields(TokenizerConfig)}
    if old and (out / INDEX).exists():
        changed = {name for name in recipe if before.get(name) != recipe[name]}
        if changed:
            names = " and ".join(sorted(changed))
            raise ValueError(f"{out} has a tokenizer that was trained with another {names}; choose another folder")
        return old
    recipe["text"] = _digest(sources, config)
    if old and before == recipe:
        return old
    console.print(f"training a tokenizer of {config.vocab_size:,} tokens")
    new = tokenizer.train(lambda: _sample(sources, config), config)
    refuse_other(out, new, config)
    write_atomically(out / tokenizer.FILE, new.json.encode())
    write_json(out / RECIPE, recipe | {"sha256": new.hash})
    return new


def _trained_before(out: Path, config: PrepareConfig) -> tuple[dict[str, object], Tokenizer | None]:
    """How the tokenizer in the folder was trained, and it; nothing if it came from elsewhere."""
    if not (out / RECIPE).exists() or not (out / tokenizer.FILE).exists():
        return {}, None
    recipe, found = read_json(out / RECIPE), tokenizer.load(out / tokenizer.FILE, config)
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


def _print_summary(console: Console, index: Index, out: Path, text_bytes: int, seconds: float) -> None:
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
