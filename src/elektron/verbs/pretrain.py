"""elektron pretrain [FILE.toml ...]: a folder of text in, a Hugging Face encoder out. Run again, it goes on where it
stopped. With no flags it trains a tiny model on the documentation that came with your Python."""

import sys
import tomllib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from signal import Signals
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from elektron.config import glimpse, overlay, parse, read_toml, split_files, to_toml
from elektron.data import tokenizer
from elektron.data.corpus import PYTHON_DOCS
from elektron.data.files import locked
from elektron.data.shards import Data, is_prepared, open_data
from elektron.data.tokenizer import Tokenizer
from elektron.model.heads import Discriminator
from elektron.model.initial import initialise
from elektron.objectives.objective import Objective
from elektron.score.reader import Reader
from elektron.score.rows import replaced_logits
from elektron.score.words import words_of
from elektron.train.device import choose_device
from elektron.train.distributed import ALONE, World, joined
from elektron.train.ends import OUT_OF_TIME
from elektron.train.loop import train
from elektron.verbs import branches, runs
from elektron.verbs.export import export
from elektron.verbs.prepare import prepare
from elektron.verbs.report import write_report
from elektron.verbs.runs import Choice, RunConfig

Config = TypeVar("Config", bound=RunConfig)
EXAMPLES = (
    "Return the number of because in the list.",
    "This method should python overridden by subclasses.",
    "This class does not file any arguments.",
)
"""A wrong word in each, for a model that was trained on the built-in corpus."""


def main(arguments: Sequence[str]) -> None:
    config = configure(arguments, "elektron pretrain", __doc__ or "")
    with joined(choose_device(config.device)) as world:
        code = pretrain(_first_ranks(config, world), world)
    sys.exit(code)


def _first_ranks(config: RunConfig, world: World) -> RunConfig:
    """What the first rank was told: a run's folder, which decides how it goes on, need not be seen by the others."""
    told = world.told(to_toml(config))
    return overlay(RunConfig(), tomllib.loads(told), "the first rank's config")


def configure(arguments: Sequence[str], prog: str, description: str, kind: type[Config] = RunConfig) -> Config:
    """Presets first, or what a run that has begun, or is left, was made with; then --init-from's shapes; then files;
    then flags. `kind` may have flags of its own beside those of a run."""
    files, flags = split_files(arguments)
    beginning = _beginning(files, flags)
    for file in files:
        beginning = overlay(beginning, read_toml(file), str(file))
    config = parse(kind(**vars(beginning)), flags, f"{prog} [FILE.toml ...]", description)
    runs.check(config)
    if runs.begins_with_weights(config) and not runs.has_begun(config.run):
        runs.refuse_other_shapes(config)
    return config if config.data or config.corpus else replace(config, corpus=(PYTHON_DOCS,))


def _beginning(files: Sequence[Path], flags: Sequence[str]) -> RunConfig:
    """The values under those of files and flags. A run that has not trained yet may still begin in another way."""
    preset = glimpse(Choice(), files, flags).preset
    run = glimpse(Choice(run=Path("runs", "-".join(preset))), files, flags).run
    if (run / runs.CONFIG).exists():
        before = runs.read_config(run)
        choice = Choice(**{field.name: getattr(before, field.name) for field in fields(Choice)})
        if runs.has_begun(run) or glimpse(choice, files, flags) == choice:
            return before
    choice = glimpse(Choice(run=run), files, flags)
    if choice.branch:
        return branches.branched(choice)
    config = runs.with_presets(RunConfig(run=run), choice.preset)
    asked = glimpse(config, files, flags)
    if not choice.init_from and not (choice.init_generator and asked.objective.generator == "frozen"):
        return config
    settings = runs.settings_of(choice, asked.model)
    return overlay(replace(config, start="original"), settings, choice.init_from or choice.init_generator)


def pretrain(config: RunConfig, world: World = ALONE) -> int:
    """All of a run, or a rank's part in it: the first one reads, writes and speaks. Returns the exit code: 0, 128 plus
    the number of the signal that ended it, or that of the deadline."""
    console = Console(highlight=False, soft_wrap=True, quiet=not world.is_first)
    device = choose_device(config.device)
    with locked(config.run) if world.is_first else nullcontext():
        if world.is_first:
            runs.refuse_other(config)
        data = _data(config, world)
        model = runs.build(config, data.tokenizer, data.train.counts(data.index.vocab_size))
        initialise(model, config.seed, config.start)
        if world.is_first:
            _begin(config, model, data, console)
        parts = config.train, config.schedule, config.optimizer, config.watch
        code = train(config.run, model.to(device), data, config.seed, *parts, world)
        if code:
            why = "out of time" if code == OUT_OF_TIME else f"stopped by {Signals(code - 128).name}"
            console.print(f"{why}; the same command goes on from here")
        elif world.is_first:
            _finish(config, data, console)
    return code


def _begin(config: RunConfig, model: Objective, data: Data, console: Console) -> None:
    """Give the model its first weights, and the run's folder what names it."""
    if runs.begins_with_weights(config) and not runs.has_begun(config.run):
        _refuse_other_tokenizer(config, data.tokenizer)
        console.print(f"begins with {runs.load_weights(model, config.init_from, config.init_generator)}")
    if config.branch and not runs.has_begun(config.run):
        branches.begin(config)
    runs.write_config(config)
    tokenizer.save(data.tokenizer, config.run / runs.TOKENIZER, config.model.positions)
    if config.schedule.warmup_steps >= sum(steps for steps, _, _ in config.train.phases):
        console.print("[yellow]the run ends before the learning rate is warm: see --schedule.warmup-steps[/]")


def _finish(config: RunConfig, data: Data, console: Console) -> None:
    """Make of the last checkpoint what was asked for."""
    for folder in export(config.run, config.run):
        console.print(f"{folder.name}: {folder}")
    console.print(f"report: {write_report(config.run)}")
    if PYTHON_DOCS in config.corpus:
        discriminator = runs.open_run(config.run).model.networks().get("discriminator")
        if isinstance(discriminator, Discriminator):
            _demonstrate(discriminator, data.tokenizer, console)


def _data(config: RunConfig, world: World) -> Data:
    """The run's data, prepared first where a corpus is given, by the first rank. A run that has begun keeps what it
    has, whatever became of its corpus."""
    if world.is_first and config.corpus and not (runs.has_begun(config.run) and is_prepared(config.data_folder)):
        prepare(config.corpus, config.data_folder, config.prepare)
    world.wait()
    return open_data(config.data_folder)


def _refuse_other_tokenizer(config: RunConfig, of_data: Tokenizer) -> None:
    source = runs.settings_of(config, config.model)["prepare"]["tokenizer"]
    if tokenizer.load(source, config.prepare).hash != of_data.hash:
        raise ValueError(f"{config.data_folder} was prepared with another tokenizer than {source} has")


def _demonstrate(discriminator: Discriminator, tokens: Tokenizer, console: Console) -> None:
    """The discriminator at work: the redder a word, the likelier it does not belong."""
    console.print("\nWhat the discriminator makes of three sentences with a wrong word in each:")
    say = replaced_logits(discriminator.eval(), tokens.specials)
    for reading in Reader(say, tokens, discriminator.encoder.config.positions).read(EXAMPLES):
        sentence, words = reading.text, words_of(reading)
        worst = max(words, key=lambda word: word.replaced)
        least = min(word.replaced for word in words)
        text = Text(sentence)
        for word in words:
            share = (word.replaced - least) / max(1e-9, worst.replaced - least)
            text.stylize(f"on rgb({int(200 * share)},0,0)", word.start, word.stop)
        verdict = f"   most suspicious: {sentence[worst.start : worst.stop]!r} ({worst.replaced:.2f})"
        console.print("  ", text, verdict, sep="")
