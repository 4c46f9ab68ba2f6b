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
from elektron.data.files import read_json, write_atomically, write_json
from elektron.data.prepare import ShardsConfig, refuse_other, write_shards
from elektron.data.shards import Index
from elektron.data.tokenizer import Tokenizer, TokenizerConfig

RECIPE = "tokenizer.recipe.json"


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(ReadingConfig, TokenizerConfig, ShardsConfig):
    """Reading, tokenizer and shards."""


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
    config = parse(config, flags, "elektron prepare", __doc__ or "")
    prepare(config.corpus, config.out, config)


def prepare(specs: Sequence[str], out: Path, config: PrepareConfig) -> Index:
    """Make a folder of shards, or complete one."""
    console = Console(highlight=False, soft_wrap=True)
    sources = corpus.sources(specs)
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
    return index


def _spooled(out: Path) -> str:
    """Standard input in a file: a tokenizer is trained on the text before it is used on it."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "stdin.txt", "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return str(out / "stdin.txt")


def _tokenizer(sources: list[str], out: Path, config: PrepareConfig, console: Console) -> Tokenizer:
    """The one that was asked for; a trained one is kept with the digest of what it was trained on, and used again."""
    if config.tokenizer != "train":
        return tokenizer.load(config.tokenizer, config)
    recipe = _recipe(sources, config)
    finished = out / tokenizer.FILE
    if finished.exists() and (out / RECIPE).exists() and read_json(out / RECIPE) == recipe:
        return tokenizer.load(finished, config)
    console.print(f"training a tokenizer of {config.vocab_size:,} tokens")
    trained = tokenizer.train(lambda: _sample(sources, config), config)
    refuse_other(out, trained, config)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(finished, trained.json.encode())
    write_json(out / RECIPE, recipe)
    return trained


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


def _recipe(sources: list[str], config: PrepareConfig) -> dict[str, object]:
    digest = hashlib.blake2b(digest_size=16)
    for text in _sample(sources, config):
        digest.update(text.encode("utf-8", "replace"))
    settings = {field.name: getattr(config, field.name) for field in fields(TokenizerConfig)}
    return {"text": digest.hexdigest(), **settings}


def _print_summary(console: Console, index: Index, out: Path, text_bytes: int, seconds: float) -> None:
    tokens = index.train_tokens + index.held_tokens
    console.print(
        f"{out}: {index.documents:,} documents, {tokens:,} tokens ({text_bytes / tokens:.2f} bytes each, "
        f"{index.unknown / tokens:.3%} unknown), {index.held_tokens:,} of them held out, vocabulary "
        f"{index.vocab_size:,}; {text_bytes / 1e6:,.1f} MB in {seconds:.1f} s"
    )
