"""elektron finetune TASK --model RUN --data FOLDER: teach a pre-trained encoder a task, with several seeds if asked,
and tell how well it does. Run again, it goes on with what is not done.

TASK is glue, for all of it, or one of cola, sst, mrpc, sts, qqp, mnli, qnli, rte, wnli; squad, squad2 or mrqa; chunk,
ner, pos or ged (tags of words); or own, for tables of your own: --train my.csv --dev other.csv --text a,b --label y."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

import elektron
from elektron.config import parse
from elektron.data.examples import Examples
from elektron.data.files import locked, sha256
from elektron.model.encoder import Encoder, with_dropout
from elektron.model.task_heads import Style, Tuned, begin_head
from elektron.model.weights import fingerprint
from elektron.tasks import glue
from elektron.tasks.protocols import Plan, SourceConfig, names_of, plan_of
from elektron.tasks.results import NO_SHARES, middle
from elektron.tasks.task import Split, Task
from elektron.train.checkpoint import FOLDER as CHECKPOINTS
from elektron.train.device import DeviceName, choose_device, describe, keep_freed_memory, precision
from elektron.train.tune import RecipeConfig, predict, tune
from elektron.verbs.attempts import Result, find, keep_one, middle_model, note, tell_all, tell_one, write
from elektron.verbs.runs import Pretrained, open_encoder

_COLUMNS = ("text", "label", "kind", "columns")
"""What of a source decides how its files are read."""
_SHORTEST = 5
"""[CLS], two [SEP], and a token of each text."""


@dataclass(frozen=True, kw_only=True)
class Config(SourceConfig):
    """elektron finetune"""

    model: tuple[str, ...] = ("runs/tiny",)
    """A run, a checkpoint of one, or the Hugging Face folder of any ELECTRA. Of several, their scores are drawn against
    the steps they were trained for."""
    out: str = ""
    """Where results go; finetuned/MODEL if empty."""
    seeds: int = 1
    """How many times a task is learned, each time with another head, order and dropout."""
    seed: int = 0
    """The first of them."""
    length: int = 0
    """Longest row in tokens; the paper's if 0."""
    head: Style = "transformers"
    """Heads that open in transformers, or those of the original code, which do not."""
    keep: Literal["none", "median", "all"] = "median"
    """Which of a task's seeds are written as Hugging Face folders."""
    mnli_first: bool = False
    """Learn MRPC, STS-B and RTE from the network that has learned MNLI."""
    together: int = 5
    """Seeds that learn side by side on a GPU."""
    device: DeviceName = "auto"
    """auto: a GPU if there is one."""
    recipe: RecipeConfig = RecipeConfig()

    def __post_init__(self) -> None:
        for name, least in (("seeds", 1), ("together", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"--{name} is at least {least}, not {getattr(self, name)}")
        if self.length and self.length < _SHORTEST:
            raise ValueError(f"--length {self.length} leaves no room for texts: at least {_SHORTEST}")
        if not self.model or len({_label(model) for model in self.model}) < len(self.model):
            raise ValueError(
                f"--model needs folders of different names, since results go by them: {' '.join(self.model)}"
            )
        if self.mnli_first and (self.keep == "none" or self.head == "original"):
            raise ValueError(
                "--mnli-first needs the network that has learned MNLI: not with --keep none or --head original"
            )


def main(arguments: Sequence[str]) -> None:
    config = parse(Config(), arguments, "elektron finetune", __doc__ or "", first="task")
    console = Console(highlight=False, soft_wrap=True)
    names = names_of(config)
    if config.task == "glue" and len(names) < len(glue.TASKS):
        absent = ", ".join(name for name in glue.TASKS if name not in names)
        console.print(f"{config.data} does not have {absent}", markup=False)
    if config.mnli_first:
        names.sort(key=lambda name: name != "mnli")
    device = choose_device(config.device)
    if device.type == "cpu":
        keep_freed_memory()
    out = Path(config.out) if config.out else Path("finetuned", _label(config.model[0]))
    if config.head == "original" and config.keep != "none":
        console.print("transformers has no class for the original's heads: results are written, networks are not")
    plans = {name: plan_of(name, config) for name in names}  # what is missing is told before anything is learned
    with locked(out):
        models = {model: out / _label(model) if len(config.model) > 1 else out for model in config.model}
        for model, folder in models.items():
            folder.mkdir(exist_ok=True)
            if len(models) > 1:
                console.print(f"\n{model}", markup=False)
            for name, plan in plans.items():
                found = _finetune(name, plan, Path(model), config, folder, device, console)
                note(name, found, folder)
            tell_one(folder, console)
        if len(models) > 1:
            tell_all(out, list(models.values()), console)


def _label(model: str) -> str:
    """What a model's folder is called: a checkpoint by its run's name and its own."""
    path = Path(model).resolve()
    return f"{path.parent.parent.name}-{path.name}" if path.parent.name == CHECKPOINTS else path.name


def _finetune(
    name: str, plan: Plan, model: Path, config: Config, out: Path, device: torch.device, console: Console
) -> list[Result]:
    """The results of all seeds, of which those that are not there yet are learned first."""
    pretrained = open_encoder(_learned_mnli(out) if config.mnli_first and name in glue.FROM_MNLI else model)
    settings = _settings(name, config, plan, pretrained, device)
    seeds = range(config.seed, config.seed + config.seeds)
    missing = [seed for seed in seeds if not find(out / name, seed, settings)]
    if missing:
        task = plan.open(pretrained.tokenizer, settings["length"])
        for said in task.notes:
            console.print(f"{name}: {said}", markup=False)
        at_once = config.together if device.type == "cuda" else 1
        for first in range(0, len(missing), at_once):
            _learn(task, missing[first : first + at_once], config, pretrained, settings, out / name, device, console)
    results = [result for seed in seeds if (result := find(out / name, seed, settings))]
    if config.keep == "median" and config.head == "transformers":
        chosen = seeds[middle([result.score for result in results])]
        if not keep_one(out / name, chosen, list(seeds)):
            again = f"remove {out / name / f'seed-{chosen}'} to learn it again"
            console.print(f"{name}: the network of the median seed, {chosen}, is not there; {again}", markup=False)
    return results


def _learned_mnli(out: Path) -> Path:
    found = middle_model(out / "mnli")
    if found is None:
        raise ValueError(f"--mnli-first: {out} has no network that has learned MNLI: finetune mnli there")
    return found


def _settings(name: str, config: Config, plan: Plan, pretrained: Pretrained, device: torch.device) -> dict[str, Any]:
    """All that decides a result, but the seed."""
    shape = pretrained.encoder.config
    if config.length > shape.positions:
        raise ValueError(f"--length {config.length} is longer than the model's {shape.positions} positions")
    recipe = config.recipe.resolved(shape, plan.epochs)
    return {
        "task": name,
        "weights": fingerprint(pretrained.encoder),
        "tokenizer": pretrained.tokenizer.hash,
        "data": {role: sha256(path) for role, path in plan.files.items()},
        "columns": {name: getattr(config, name) for name in _COLUMNS},
        "length": min(config.length or plan.length, shape.positions),
        "head": config.head,
        "precision": str(precision(device)),
        "recipe": asdict(recipe),
    }


def _learn(
    task: Task,
    seeds: Sequence[int],
    config: Config,
    pretrained: Pretrained,
    settings: dict[str, Any],
    folder: Path,
    device: torch.device,
    console: Console,
) -> None:
    """Seeds side by side: learn, ask, write."""
    recipe = RecipeConfig(**settings["recipe"])
    networks = [_network(task, pretrained.encoder, config.head, recipe.dropout, seed).to(device) for seed in seeds]

    def rows(split: Split) -> Examples:
        return Examples(split.rows, pretrained.tokenizer.specials, device, task.kind == "tagging")

    dev = {name: rows(split) for name, split in task.dev.items()}

    def asked(network: Tuned) -> dict[str, list[np.ndarray]]:
        return {name: predict(network, examples) for name, examples in dev.items()}

    def measured(outputs: dict[str, list[np.ndarray]]) -> dict[str, dict[str, float]]:
        return {name: task.metrics(task.dev[name].known, found) for name, found in outputs.items()}

    def score(metrics: dict[str, dict[str, float]]) -> float:
        return next(iter(metrics.values()))[task.metric]

    def judged(network: Tuned) -> float:
        return score(measured(asked(network)))

    bar = partial(track, description=task.name, console=console, transient=True, disable=not console.is_terminal)
    try:
        tunings, cost = tune(networks, rows(task.train), recipe, seeds, judged, bar)
    except torch.OutOfMemoryError:
        told = f"{len(seeds)} seeds at once, {recipe.batch} rows of up to {settings['length']} tokens each"
        raise ValueError(f"{describe(device)} has no memory for {told}: lower --together or --recipe.batch") from None
    for seed, tuning in zip(seeds, tunings, strict=True):
        outputs = asked(tuning.network)
        metrics = measured(outputs)
        outputs |= {name: predict(tuning.network, rows(split)) for name, split in task.test.items()}
        answers = {
            f"{name}{end}": content
            for name, split in {**task.dev, **task.test}.items()
            for end, content in task.answers(split.known, outputs[name]).items()
        }
        spent = cost._asdict() | {"seeds": len(seeds), "device": describe(device), "elektron": elektron.__version__}
        result = Result(seed, pretrained.step, task.metric, score(metrics), metrics, spent)
        model = tuning.whole() if config.keep != "none" and config.head == "transformers" else None
        write(folder, result, settings, tuning.losses, answers, model, pretrained.tokenizer)
        console.print(f"{task.name}, seed {seed}: {_in_words(metrics)}; {cost.steps:,} steps in {cost.seconds:.0f} s")


def _network(task: Task, encoder: Encoder, style: Style, dropout: float | None, seed: int) -> Tuned:
    network = Tuned(with_dropout(encoder, dropout), task.kind, style, task.labels)
    begin_head(network.head, style, seed)
    return network


def _in_words(metrics: dict[str, dict[str, float]]) -> str:
    return "; ".join(
        f"{split} " + ", ".join(f"{name} {100 * found[name]:.1f}" for name in found if not name.endswith(NO_SHARES))
        for split, found in metrics.items()
    )
