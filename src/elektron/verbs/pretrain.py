"""elektron pretrain [FILE.toml ...]: a folder of text in, a Hugging Face encoder out. Run again, it goes on where it
stopped. With no flags it trains a tiny model on the documentation that came with your Python."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from elektron.config import overlay, parse, read_toml, split_files
from elektron.data import tokenizer
from elektron.data.corpus import PYTHON_DOCS
from elektron.data.shards import open_data
from elektron.data.tokenizer import Tokenizer
from elektron.model.heads import Discriminator
from elektron.model.initial import initialise
from elektron.score.judge import judge
from elektron.train.device import choose_device
from elektron.train.loop import train
from elektron.verbs import runs
from elektron.verbs.export import export
from elektron.verbs.prepare import prepare
from elektron.verbs.report import write_report
from elektron.verbs.runs import RunConfig

EXAMPLES = (
    "Return the number of because in the list.",
    "This method should python overridden by subclasses.",
    "This class does not file any arguments.",
)
"""A wrong word in each, for a model that was trained on the built-in corpus."""


def main(arguments: Sequence[str]) -> None:
    sys.exit(pretrain(configure(arguments, "elektron pretrain", __doc__ or "")))


def configure(arguments: Sequence[str], prog: str, description: str) -> RunConfig:
    """Presets first, or what a run that has begun was made with; then --init-from's shapes; then files; then flags."""
    files, flags = split_files(arguments)

    def layered(config: RunConfig) -> RunConfig:
        for file in files:
            config = overlay(config, read_toml(file), str(file))
        return parse(config, flags, prog, description)

    named = RunConfig(run=Path("runs", "-".join(layered(RunConfig()).preset)))
    asked = layered(named)
    if runs.has_begun(asked.run):
        return runs.check(layered(runs.read_config(asked.run)))
    config = runs.with_presets(named, asked.preset)
    if asked.init_from:
        config = overlay(config, runs.settings_of(asked.init_from, asked.init_generator), asked.init_from)
    config = runs.check(layered(config))
    return config if config.data or config.corpus else replace(config, corpus=(PYTHON_DOCS,))


def pretrain(config: RunConfig) -> int:
    """All of a run. Returns the exit code: 0, or 128 plus the number of the signal that ended it."""
    console = Console(highlight=False, soft_wrap=True)
    device = choose_device(config.device)
    runs.claim(config)
    if config.corpus:
        prepare(config.corpus, config.data_folder, config.prepare)
    data = open_data(config.data_folder)
    tokenizer.save(data.tokenizer, config.run / runs.TOKENIZER, config.model.positions)
    model = runs.build(config, data.tokenizer)
    initialise(model, config.seed, config.start)
    if config.init_from:
        _refuse_other_tokenizer(config, data.tokenizer)
        console.print(f"begins with {runs.load_weights(model, config.init_from, config.init_generator)}")
    model.to(device)
    parts = config.train, config.schedule, config.optimizer, config.watch
    signal = train(config.run, model, data, config.seed, *parts)
    if signal:
        console.print(f"stopped by signal {signal}; the same command goes on from here")
        return 128 + signal
    for folder in export(config.run, config.run):
        console.print(f"{folder.name}: {folder}")
    console.print(f"report: {write_report(config.run)}")
    if PYTHON_DOCS in config.corpus:
        _demonstrate(model.eval().discriminator, data.tokenizer, console)
    return 0


def _refuse_other_tokenizer(config: RunConfig, of_data: Tokenizer) -> None:
    source = runs.settings_of(config.init_from, config.init_generator)["prepare"]["tokenizer"]
    if tokenizer.load(source, config.prepare).hash != of_data.hash:
        raise ValueError(f"{config.data_folder} was prepared with another tokenizer than {config.init_from} has")


def _demonstrate(discriminator: Discriminator, tokens: Tokenizer, console: Console) -> None:
    """The discriminator at work: the redder a word, the likelier it does not belong."""
    console.print("\nWhat the discriminator makes of three sentences with a wrong word in each:")
    for sentence in EXAMPLES:
        words = judge(discriminator, tokens, sentence)
        worst = max(words, key=lambda word: word.replaced)
        least = min(word.replaced for word in words)
        text = Text(sentence)
        for word in words:
            share = (word.replaced - least) / max(1e-9, worst.replaced - least)
            text.stylize(f"on rgb({int(200 * share)},0,0)", word.start, word.stop)
        verdict = f"   most suspicious: {sentence[worst.start : worst.stop]!r} ({worst.replaced:.2f})"
        console.print("  ", text, verdict, sep="")
