"""The networks that say something of texts, out of runs and Hugging Face folders, ready to be asked."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from elektron.data import tokenizer
from elektron.data.tokenizer import Specials, Tokenizer, TokenizerConfig
from elektron.interop.huggingface import load_discriminator, load_generator, load_tagger, read_config
from elektron.model.heads import Discriminator, Generator
from elektron.model.task_heads import Tuned
from elektron.model.weights import lower
from elektron.score import calibration
from elektron.score.calibration import Calibration
from elektron.score.detector import Detector
from elektron.score.lines import STANDARD_INPUT, Line, lines
from elektron.score.reader import GATHERED, Reader
from elektron.score.rows import Say, error_logits, masked_log_probabilities, replaced_logits
from elektron.score.sentences import Way
from elektron.score.suggest import Suggester
from elektron.tasks.words import CORRECT, INCORRECT
from elektron.train.device import DeviceName, choose_device, precision
from elektron.verbs.runs import CONFIG, DISCRIMINATOR, ENCODER, GENERATOR, open_run

PACKAGED = Path(__file__).parents[1] / "packaged"
"""discriminator/ and generator/ that come with Elektron."""
AUTO = "auto"
_MASKED_LM, _TAGGER = "ElectraForMaskedLM", "ElectraForTokenClassification"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Who reads, and how."""

    model: str = ""
    """A run, an exported folder or the Hugging Face folder of an ELECTRA, as it was pre-trained or fine-tuned to find
    errors (`elektron finetune ged`); if empty, the small English one that comes with Elektron."""
    length: int = 0
    """Tokens that are read together; 0: as many as the model can. What is longer is read through windows."""
    lead: str = AUTO
    """What is read before texts that leave room for it: any ordinary text, without which networks that learned from
    full rows see little in short ones; auto: what was calibrated with, or nothing."""
    device: DeviceName = "auto"
    """auto: a GPU if there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: float32 on a CPU, bfloat16 on a GPU. A CPU that multiplies bfloat16 (AVX512-BF16, AMX) reads faster in it;
    logits then differ by some hundredths."""


@dataclass(frozen=True, kw_only=True)
class Who(Reading):
    """Who is asked."""

    generator: str = ""
    """The Hugging Face folder of a generator, to suggest words or to name masked ones; the model's own if empty."""
    calibrated: bool = True
    """Use what `elektron calibrate` left beside the model, if it did."""


@dataclass(frozen=True, kw_only=True)
class Asked(Who):
    """Who is asked about which texts."""

    files: tuple[str, ...] = ()
    """Text to read, a line at a time, named before all flags; - or nothing: standard input. Files named .jsonl hold
    records."""
    field: str = ""
    """What the text of a record is called, "text" if empty; standard input is taken for records if there is a name."""


def lines_of(asked: Asked, is_printing: bool) -> Iterator[Line]:
    """The lines of its files, with a bar that tells how far it is, where nothing else is printed to the terminal."""
    sizes = [Path(name).stat().st_size for name in asked.files if Path(name).is_file()]
    console = Console(stderr=True)
    hidden = not console.is_terminal or (is_printing and sys.stdout.isatty()) or not sizes
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=hidden, redirect_stdout=False) as progress:
        bar = progress.add_task("", total=sum(sizes))
        yield from lines(asked.files, asked.field, lambda some: progress.advance(bar, some))


def gathered_for(asked: Asked) -> int:
    """Characters to read together: what comes from a keyboard is answered line by line."""
    reads_standard = not asked.files or STANDARD_INPUT in asked.files
    return 0 if reads_standard and sys.stdin.isatty() else GATHERED


class Judges(NamedTuple):
    """What there is of a model."""

    discriminator: Discriminator | Tuned | None
    """Or what was fine-tuned to find errors."""
    generator: Generator | None
    """A masked LM: the small one beside a discriminator, or all there is."""
    tokenizer: Tokenizer
    home: Path
    """The folder of the discriminator, or of the run."""
    gives_energies: bool = False
    """Whether the discriminator is Electric's, which tells how likely a word is, not whether it was replaced."""
    length: int = 0
    """Of the rows it reads; 0: as long as it can."""
    lead: str = ""
    """What is read before short texts."""
    calibration: Calibration = Calibration()
    """What was fitted for it and the lead, if it was."""

    @property
    def way(self) -> Way:
        """What it was trained for."""
        return "masked" if self.discriminator is None else "energy" if self.gives_energies else "detection"

    def detector(self, suggests: bool) -> Detector:
        """Tells which words were replaced and, if it `suggests` and has a generator, what would be better."""
        suggester = Suggester(self.generator, self.tokenizer, self.lead) if suggests and self.generator else None
        return Detector(self.reader("detection"), self.calibration, suggester)

    def reader(self, way: Way) -> Reader:
        if self.gives_energies and way == "detection":
            raise ValueError(
                f"{self.home}: electric's discriminator tells how likely words are, not which were replaced"
            )
        specials, network = self.tokenizer.specials, self.generator if way == "masked" else self.discriminator
        if network is None:
            lacking = "generator: name one with --generator" if way == "masked" else "discriminator, only a masked LM"
            raise ValueError(f"the model has no {lacking}")
        positions = network.encoder.config.positions
        if self.length > positions:
            raise ValueError(f"--length {self.length} is longer than the model's {positions} positions")
        is_tagger = isinstance(network, Tuned)
        return Reader(_say(network, specials), self.tokenizer, self.length or positions, self.lead, is_tagger)


def _say(network: Discriminator | Generator | Tuned, specials: Specials) -> Say:
    if isinstance(network, Tuned):
        return error_logits(network, INCORRECT, specials)
    if isinstance(network, Generator):
        return masked_log_probabilities(network, specials)
    return replaced_logits(network, specials)


def open_judges(who: Who) -> Judges:
    """The networks of a run, of an exported folder or in a Hugging Face folder; and the generator that is named, if one
    is, in place of their own."""
    path, generator = Path(who.model) if who.model else PACKAGED, who.generator
    found = _of_run(path) if (path / CONFIG).exists() else _of_folder(path)
    if generator:
        if tokenizer.load(generator, TokenizerConfig()).hash != found.tokenizer.hash:
            raise ValueError(f"--generator {generator} has another tokenizer than {path}")
        found = found._replace(generator=load_generator(generator))
    place = choose_device(who.device)
    dtype = precision(place) if who.precision == AUTO else getattr(torch, who.precision)
    for network in found[:2]:
        if network is not None:
            lower(network.eval().to(place), dtype)
    fitted = (calibration.load(found.home) if who.calibrated else None) or Calibration()
    lead = fitted.lead if who.lead == AUTO else who.lead
    return found._replace(length=who.length, lead=lead, calibration=fitted if lead == fitted.lead else Calibration())


def _of_run(path: Path) -> Judges:
    opened = open_run(path)
    networks, kind = opened.model.networks(), opened.config.objective.kind
    judge, speaker = networks.get(DISCRIMINATOR), networks.get(GENERATOR, networks.get(ENCODER))
    assert judge is None or isinstance(judge, Discriminator)
    assert speaker is None or isinstance(speaker, Generator)
    return Judges(judge, speaker, opened.tokenizer, path, kind == "electric")


def _of_folder(path: Path) -> Judges:
    if not any((folder / "config.json").exists() for folder in (path, path / DISCRIMINATOR, path / ENCODER)):
        raise ValueError(f"{path} is neither a run nor a Hugging Face folder")
    folder = next((path / name for name in (DISCRIMINATOR, ENCODER) if (path / name).is_dir()), path)
    tokens = tokenizer.load(folder, TokenizerConfig())
    architectures = read_config(folder).get("architectures") or ()
    if _MASKED_LM in architectures:
        return Judges(None, load_generator(folder), tokens, folder)
    if _TAGGER in architectures:
        tagger = load_tagger(folder)
        if set(tagger.labels) != {CORRECT, INCORRECT}:
            told = ", ".join(tagger.labels)
            raise ValueError(f"{folder} gives words other tags than {CORRECT} and {INCORRECT} (incorrect): {told}")
        return Judges(tagger, None, tokens, folder)
    beside = folder.parent / GENERATOR
    speaker = load_generator(beside) if folder.name == DISCRIMINATOR and beside.is_dir() else None
    return Judges(load_discriminator(folder), speaker, tokens, folder)
