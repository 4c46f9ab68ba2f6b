"""elektron finetune TASK --model RUN --data FOLDER: teach a pre-trained encoder a task, with several seeds if asked,
and tell how well it does. Run again, it goes on with what is not done.

TASK is glue, for all of it, or one of cola, sst, mrpc, sts, qqp, mnli, qnli, rte, wnli; squad, squad2 or mrqa; chunk,
ner, pos or ged (tags of words); or own, for tables of your own: --train my.csv --dev other.csv --text a,b --label y."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import track

from elektron.config import parse
from elektron.data.examples import Examples
from elektron.data.files import locked, sha256
from elektron.model.encoder import Encoder
from elektron.model.task_heads import Style, Tuned, begin_head
from elektron.model.weights import fingerprint
from elektron.tasks import glue
from elektron.tasks.protocols import Plan, SourceConfig, names_of, plan_of
from elektron.tasks.results import middle
from elektron.tasks.task import Split, Task
from elektron.train.checkpoint import FOLDER as CHECKPOINTS
from elektron.train.device import DeviceName, choose_device, describe, keep_freed_memory
from elektron.train.tune import RecipeConfig, predict, tune
from elektron.verbs.attempts import MODEL, Result, find, keep_one, tell_all, tell_one, write
from elektron.verbs.runs import Pretrained, open_encoder

_NO_SHARES = ("total", "thresh")
"""What the names of metrics end with that are no shares of one."""


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
        if min(self.seeds, self.together) < 1 or self.length < 0:
            raise ValueError(f"--seeds and --together are at least 1, --length at least 0: {self}")
        if not self.model or len({_label(model) for model in self.model}) < len(self.model):
            raise ValueError(f"--model names one model or several different ones: {' '.join(self.model)}")
        if self.mnli_first and self.keep == "none":
            raise ValueError("--mnli-first needs the network that has learned MNLI: not with --keep none")


def main(arguments: Sequence[str]) -> None:
    config = parse(Config(), arguments, "elektron finetune", __doc__ or "", first="task")
    console = Console(highlight=False, soft_wrap=True)
    names = names_of(config)
    if config.mnli_first:
        names.sort(key=lambda name: name != "mnli")
    device = choose_device(config.device)
    if device.type == "cpu":
        keep_freed_memory()
    out = Path(config.out) if config.out else Path("finetuned", _label(config.model[0]))
    if config.head == "original" and config.keep != "none":
        console.print("transformers has no class for the original's heads: results are written, networks are not")
    with locked(out):
        models = {model: out / _label(model) if len(config.model) > 1 else out for model in config.model}
        for model, folder in models.items():
            if len(models) > 1:
                console.print(f"\n{model}")
            found = {name: _finetune(name, Path(model), config, folder, device, console) for name in names}
            tell_one(found, folder, console)
        if len(models) > 1:
            tell_all(out, list(models.values()), console)


def _label(model: str) -> str:
    """What a model's folder is called: a checkpoint by its run's name and its own."""
    path = Path(model).resolve()
    return f"{path.parent.parent.name}-{path.name}" if path.parent.name == CHECKPOINTS else path.name


def _finetune(
    name: str, model: Path, config: Config, out: Path, device: torch.device, console: Console
) -> list[Result]:
    """The results of all seeds, of which those that are not there yet are learned first."""
    pretrained = open_encoder(_learned_mnli(out) if config.mnli_first and name in glue.FROM_MNLI else model)
    plan = plan_of(name, config)
    settings = _settings(name, config, plan, pretrained)
    seeds = range(config.seed, config.seed + config.seeds)
    missing = [seed for seed in seeds if not find(out / name, seed, settings)]
    if missing:
        task = plan.open(pretrained.tokenizer, settings["length"])
        console.print(*(f"{name}: {note}" for note in task.notes), sep="\n", end="\n" if task.notes else "")
        at_once = config.together if device.type == "cuda" else 1
        for first in range(0, len(missing), at_once):
            _learn(task, missing[first : first + at_once], config, pretrained, settings, out / name, device, console)
    results = [result for seed in seeds if (result := find(out / name, seed, settings))]
    if config.keep == "median":
        keep_one(out / name, list(seeds)[middle([result.score for result in results])])
    return results


def _learned_mnli(out: Path) -> Path:
    models = sorted((out / "mnli").glob(f"seed-*/{MODEL}"))
    if not models:
        raise ValueError(
            f"--mnli-first: {out} has no network that has learned MNLI; run `elektron finetune mnli` there"
        )
    return models[0]


def _settings(name: str, config: Config, plan: Plan, pretrained: Pretrained) -> dict[str, Any]:
    """All that decides a result, but the seed."""
    shape = pretrained.encoder.config
    if config.length > shape.positions:
        raise ValueError(f"--length {config.length} is longer than the model's {shape.positions} positions")
    recipe = config.recipe.resolved(shape, plan.epochs)
    return {
        "task": name,
        "weights": fingerprint(pretrained.encoder),
        "tokenizer": pretrained.tokenizer.hash,
        "data": {path.name: sha256(path) for path in plan.files},
        "length": min(config.length or plan.length, shape.positions),
        "head": config.head,
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
    networks = [_network(task, pretrained.encoder, config.head, seed).to(device) for seed in seeds]

    def rows(split: Split) -> Examples:
        return Examples(split.rows, pretrained.tokenizer.specials, device, task.kind == "tagging")

    dev = {name: rows(split) for name, split in task.dev.items()}

    def measured(network: Tuned) -> dict[str, dict[str, float]]:
        return {name: task.metrics(task.dev[name].known, predict(network, asked)) for name, asked in dev.items()}

    def score(metrics: dict[str, dict[str, float]]) -> float:
        return next(iter(metrics.values()))[task.metric]

    recipe = RecipeConfig(**settings["recipe"])
    bar = partial(track, description=task.name, console=console, transient=True, disable=not console.is_terminal)
    tunings, cost = tune(networks, rows(task.train), recipe, seeds, lambda network: score(measured(network)), bar)
    for seed, tuning in zip(seeds, tunings, strict=True):
        metrics = measured(tuning.network)
        answers = {
            f"{name}{task.suffix}": task.answers(split.known, predict(tuning.network, rows(split)))
            for name, split in task.test.items()
        }
        spent = cost._asdict() | {"seeds": len(seeds), "device": describe(device)}
        result = Result(seed, pretrained.step, task.metric, score(metrics), metrics, spent)
        model = tuning.whole() if config.keep != "none" and config.head == "transformers" else None
        write(folder, result, settings, answers, model, pretrained.tokenizer)
        console.print(f"{task.name}, seed {seed}: {_in_words(metrics)}; {cost.steps:,} steps in {cost.seconds:.0f} s")


def _network(task: Task, encoder: Encoder, style: Style, seed: int) -> Tuned:
    network = Tuned(deepcopy(encoder), task.kind, style, task.labels)
    begin_head(network.head, style, seed)
    return network


def _in_words(metrics: dict[str, dict[str, float]]) -> str:
    return "; ".join(
        f"{split} " + ", ".join(f"{name} {100 * found[name]:.1f}" for name in found if not name.endswith(_NO_SHARES))
        for split, found in metrics.items()
    )
