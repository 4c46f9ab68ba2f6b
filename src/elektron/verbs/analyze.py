"""elektron analyze RUN: where a discriminator errs, by frequency, form, place, part of speech and its generator's
confidence, and the geometry of its layers beside other encoders'. RUN is a run, an exported folder or, for the geometry
alone, any ELECTRA in a Hugging Face folder."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console

from elektron.config import parse
from elektron.data.batches import SPECIALS, Batch
from elektron.data.files import write_atomically, write_json
from elektron.data.shards import Data, Stream, open_data
from elektron.model.weights import lower
from elektron.score import errors, speech
from elektron.score.bands import Cut, band_of, bands_of, by_tag, cuts_of
from elektron.score.geometry import Layer, as_they_are, layers_of, read_anew
from elektron.tasks.tagging import read_columns, read_jsonl
from elektron.train.device import DeviceName, choose_device, precision
from elektron.train.evaluate import passes
from elektron.train.loop import first_batches
from elektron.verbs.findings import Findings, content, in_html, in_markdown
from elektron.verbs.runs import (
    CONFIG,
    DISCRIMINATOR,
    GENERATOR,
    USUAL_LENGTH,
    Opened,
    Pretrained,
    open_encoder,
    open_with_data,
)

PAGE = "analysis.html"


@dataclass(frozen=True, kw_only=True)
class Config:
    """elektron analyze"""

    run: Path = Path("runs/tiny")
    """A run or an exported folder: `elektron analyze RUN`."""
    beside: tuple[str, ...] = ()
    """Other encoders, whose layers are told beside: runs, checkpoints or Hugging Face folders."""
    tagged: str = ""
    """Words and their parts of speech, in columns (CoNLL, CoNLL-U) or JSON lines, to be corrupted and judged too."""
    spacy: str = ""
    """A spaCy pipeline, by name or folder, that finds parts of speech in the held-out text."""
    html: str = ""
    """Where to write the report; RUN/analysis.html if empty."""
    out: str = ""
    """Write all numbers to this file, as JSON."""
    data: str = ""
    """The prepared folder with the held-out text; a run's own if empty."""
    length: int = 0
    """Tokens a row; 0: as in the run's last phase, or 128 for a folder (or its positions, if fewer)."""
    rows: int = 1000
    """Rows to look at, or all there are if fewer."""
    batch: int = 64
    """Rows at a time."""
    examples: int = 12
    """Of either kind of error, so many are shown."""
    device: DeviceName = "auto"
    """auto: a GPU if there is one."""

    def __post_init__(self) -> None:
        if min(self.rows, self.batch) < 1 or min(self.length, self.examples) < 0:
            raise ValueError(f"--rows and --batch must be at least 1, --length and --examples at least 0: {self}")


class Subject(NamedTuple):
    """What is looked at, and on what text."""

    opened: Opened | None
    """None where there is only an encoder."""
    encoders: dict[str, Pretrained]
    """Its own."""
    data: Data
    length: int


def main(arguments: Sequence[str]) -> None:
    config = parse(Config(), arguments, "elektron analyze", __doc__ or "", first="run")
    console = Console(highlight=False, soft_wrap=True)
    subject = _open(config)
    others = {name: open_encoder(Path(path)) for name, path in _named(config.beside, subject.encoders).items()}
    texts = dict(_tagged(subject, config))
    batches = _batches(subject.data.held, subject, config)
    # in float32 all of them, so before the run's own are lowered to what they were trained in
    geometry = _geometry(subject, subject.encoders | others, batches, config)
    findings = _errors(subject, batches, texts, config)._replace(geometry=geometry)
    console.print(f"{findings.name}: {findings.told}\n", markup=False)
    console.print(in_markdown(findings), end="", markup=False)
    path = Path(config.html) if config.html else config.run / PAGE
    write_atomically(path, in_html(findings).encode())
    console.print(f"report: {path}", markup=False)
    if config.out:
        write_json(Path(config.out), content(findings))


def _named(paths: Sequence[str], taken: Iterable[str]) -> dict[str, str]:
    """Paths by their last part, where that tells them from all others."""
    names = [*taken, *(Path(path).name for path in paths)]
    return {Path(path).name if names.count(Path(path).name) == 1 else path: path for path in paths}


def _open(config: Config) -> Subject:
    is_pair = all((config.run / name).is_dir() for name in (DISCRIMINATOR, GENERATOR))
    if is_pair or (config.run / CONFIG).exists():
        opened, data, length = open_with_data(config.run, config.data, config.length)
        return Subject(opened, _own_encoders(opened), data, length)
    alone = open_encoder(config.run)
    if not config.data:
        raise ValueError(f"{config.run} is a folder: say which text its layers are to read with --data")
    length = config.length or min(USUAL_LENGTH, alone.encoder.config.positions)
    return Subject(None, {config.run.resolve().name: alone}, open_data(config.data), length)


def _own_encoders(opened: Opened) -> dict[str, Pretrained]:
    """The encoder, and the generator's if it is another."""
    found: dict[str, Pretrained] = {}
    for name, network in opened.model.networks().items():
        if all(network.encoder is not other.encoder for other in found.values()):
            found[name] = Pretrained(network.encoder, opened.tokenizer, opened.step)
    return found


def _batches(stream: Stream, subject: Subject, config: Config) -> list[Batch]:
    return first_batches(stream, subject.data.tokenizer.specials, subject.length, config.rows, config.batch)


def _errors(subject: Subject, batches: list[Batch], texts: dict[str, speech.Tagged], config: Config) -> Findings:
    """All but the geometry."""
    rows, step = sum(len(batch.original) for batch in batches), subject.opened.step if subject.opened else 0
    told = f"{rows:,} held-out rows of {subject.length} tokens" + (f", at step {step:,}" if step else "")
    nothing = Findings(config.run.resolve().name, told)
    seen = _seen(subject, batches, config)
    if seen is None:
        if texts:
            raise ValueError(f"{config.run} {_lack(subject)}: parts of speech of what it errs on cannot be told")
        return nothing._replace(told=f"{told}; it {_lack(subject)}, so only the geometry of its layers is told")
    data, tokens = subject.data, seen.tokens
    is_text = errors.is_text(tokens, data.tokenizer.specials)
    counts = data.train.counts(data.index.vocab_size)
    parts = {"all tokens": np.ones_like(is_text), "text": is_text, "[CLS] and [SEP]": ~is_text}
    return nothing._replace(
        totals=[band_of(name, tokens.where(inside)) for name, inside in parts.items() if inside.any()],
        cuts=[
            *cuts_of(tokens.where(is_text), subject.length, counts),
            *(_by_tag(subject, text, source, config) for source, text in texts.items()),
        ],
        missed=errors.missed(seen, data.tokenizer, config.examples),
        alarms=errors.alarms(seen, data.tokenizer, config.examples),
    )


def _lack(subject: Subject) -> str:
    kind = f" (its objective is {subject.opened.config.objective.kind})" if subject.opened else ""
    return f"has no discriminator and generator that go together{kind}"


def _seen(subject: Subject, batches: Iterable[Batch], config: Config) -> errors.Seen | None:
    """Every token that was judged, or nothing where none is."""
    if subject.opened is None:
        return None
    model, device = subject.opened.model, choose_device(config.device)
    lower(model.to(device), precision(device))
    found = []
    for original, segments, keys, outcome in passes(model, batches, device):
        part = errors.seen(model, original, segments, keys, outcome)
        if part is None:
            return None
        found.append(part)
    return errors.joined(found)


def _tagged(subject: Subject, config: Config) -> Iterator[tuple[str, speech.Tagged]]:
    """Text with parts of speech, as far as somebody tells them, by who does."""
    tokenizer = subject.data.tokenizer
    if config.tagged:
        sentences = (read_jsonl if config.tagged.endswith(".jsonl") else read_columns)(Path(config.tagged))
        text = speech.of_sentences(sentences)
        yield Path(config.tagged).name, speech.tagged(text, tokenizer, f"--tagged {config.tagged}")
    if config.spacy:
        held = speech.documents(subject.data.held, tokenizer, config.rows * (subject.length - SPECIALS))
        text = speech.by_spacy(config.spacy, held)
        yield f"by {Path(config.spacy).name}", speech.tagged(text, tokenizer, f"--spacy {config.spacy}")


def _by_tag(subject: Subject, text: speech.Tagged, source: str, config: Config) -> Cut:
    """Text in the rows of the run, corrupted and judged as the held-out text is."""
    seen = _seen(subject, _batches(text.tokens, subject, config), config)
    assert seen is not None, "the same model judged before"
    rows = torch.cat([batch.original for batch in _batches(text.tags, subject, config)]).numpy()
    tokens = seen.tokens.where(errors.is_text(seen.tokens, subject.data.tokenizer.specials))
    tags = rows[tokens.row, tokens.position]
    told = f"By the tag of the word that a token begins in, the commonest first, in {len(rows):,} rows of that text."
    return Cut(f"Parts of speech, {source}", told, bands_of(tokens, by_tag(tags, text.names)))


def _geometry(
    subject: Subject, encoders: dict[str, Pretrained], batches: list[Batch], config: Config
) -> dict[str, list[Layer]]:
    """Of every encoder over the same text, in tokens of its own."""
    device, tokenizer = choose_device(config.device), subject.data.tokenizer
    found = {}
    for name, (encoder, own, _) in encoders.items():
        longest, is_same = encoder.config.positions, own.hash == tokenizer.hash
        if is_same and longest < subject.length:
            raise ValueError(f"{name} reads no more than {longest} tokens: say so with --length")
        texts = as_they_are(batches, tokenizer) if is_same else read_anew(batches, tokenizer, own, longest)
        found[name] = layers_of(encoder.to(device).eval(), texts)
    return found
