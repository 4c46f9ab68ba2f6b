"""elektron finetune TASK --model RUN --data FOLDER: teach a pre-trained encoder a task, with several seeds if asked,
and tell how well it does. Run again, it goes on with what is not done.

TASK is glue, for all of it, or one of cola, sst, mrpc, sts, qqp, mnli, qnli, rte, wnli; squad, squad2 or mrqa; chunk,
ner, pos or ged (tags of words); or own, for tables of your own: --train my.csv --dev other.csv --text a,b --label y."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from elektron.config import parse
from elektron.data.examples import Examples
from elektron.data.files import locked, sha256, write_atomically, write_json
from elektron.data.tokenizer import Tokenizer
from elektron.model.encoder import Encoder
from elektron.model.task_heads import Style, Tuned, begin_head
from elektron.model.weights import fingerprint
from elektron.tasks import glue
from elektron.tasks.protocols import READING, TAGGING, Files, Tagging, files_of, own_task, reading_task, tagging_task
from elektron.tasks.results import PUBLISHED, markdown, middle, results_table, summary
from elektron.tasks.task import Split, Task
from elektron.train.device import DeviceName, choose_device, describe, keep_freed_memory
from elektron.train.tune import RecipeConfig, Tuning, predict, tune
from elektron.verbs.attempts import MODEL, Result, find, keep_one, write
from elektron.verbs.runs import Pretrained, open_encoder

OWN = "own"
_GLUE_LENGTH = 128
_OWN_EPOCHS = 3


@dataclass(frozen=True, kw_only=True)
class Config:
    """elektron finetune"""

    task: str = "glue"
    """What is to be learned."""
    model: Path = Path("runs/tiny")
    """A run, a checkpoint of one, or the Hugging Face folder of any ELECTRA."""
    data: Path = Path("glue")
    """GLUE's folder (CoLA/train.tsv and so on inside), SQuAD's (train-v1.1.json ...), or one with train.txt and
    dev.txt in columns."""
    train: str = ""
    """The file to learn from, where it is not in --data."""
    dev: str = ""
    """The file to be asked about."""
    test: str = ""
    """A file to answer without knowing the labels."""
    text: str = "text"
    """Of one's own tables the column of the text, or the two of a pair: a,b; of tagging the field of the words."""
    label: str = "label"
    """The column of the labels, of the values, or of the tags."""
    kind: Literal["classification", "regression", "tagging"] = "classification"
    """What one's own labels are: classes, numbers, or lists of tags (.jsonl)."""
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
        if self.mnli_first and self.keep == "none":
            raise ValueError("--mnli-first needs the network that has learned MNLI: not with --keep none")


def main(arguments: Sequence[str]) -> None:
    config = parse(Config(), arguments, "elektron finetune", __doc__ or "", first="task")
    console = Console(highlight=False, soft_wrap=True)
    names = _tasks(config)
    device = choose_device(config.device)
    if device.type == "cpu":
        keep_freed_memory()
    out = Path(config.out) if config.out else Path("finetuned", config.model.resolve().name)
    if config.head == "original" and config.keep != "none":
        console.print("transformers has no class for the original's heads: results are written, networks are not")
    with locked(out):
        found = {name: _finetune(name, config, out, device, console) for name in names}
        _tell(found, out, console)


def _tasks(config: Config) -> list[str]:
    """What is asked for, MNLI before those that begin with it."""
    known = [*glue.TASKS, *TAGGING, *READING, OWN]
    if config.task in known:
        return [config.task]
    if config.task != "glue":
        raise ValueError(f"unknown task {config.task!r}; known are glue, {', '.join(known)}")
    names = [name for name in glue.TASKS if glue.is_there(name, config.data)]
    if not names:
        folders = ", ".join(protocol.folder for protocol in glue.TASKS.values())
        raise ValueError(f"{config.data} has none of GLUE's folders: {folders}")
    return sorted(names, key=lambda name: name != "mnli") if config.mnli_first else names


class _Plan(NamedTuple):
    """How a task is opened, once its files have been looked at."""

    files: list[Path]
    length: int
    """The paper's."""
    epochs: float
    open: Callable[[Tokenizer, int], Task]


def _plan(name: str, config: Config) -> _Plan:
    if name in glue.TASKS:
        open_glue = partial(glue.open_task, name, config.data)
        return _Plan(glue.files(name, config.data), _GLUE_LENGTH, glue.TASKS[name].epochs, open_glue)
    files = _files(name, config)
    if name in READING:
        of_reading = READING[name]
        open_reading = partial(reading_task, name, of_reading, files)
        return _Plan(files.all(), of_reading.length, of_reading.epochs, open_reading)
    if name == OWN and config.kind != "tagging":
        columns = tuple(config.text.split(","))
        return _Plan(
            files.all(), _GLUE_LENGTH, _OWN_EPOCHS, partial(own_task, config.kind, files, columns, config.label)
        )
    of_words = TAGGING[name] if name in TAGGING else Tagging("tokens", config.text, config.label)
    return _Plan(files.all(), of_words.length, of_words.epochs, partial(tagging_task, name, of_words, files))


def _files(name: str, config: Config) -> Files:
    """Those that are named, or else those that the task has in --data."""
    if name == OWN and not (config.train and config.dev):
        raise ValueError("a task of your own needs --train and --dev: two files")
    if config.train and config.dev:
        files = Files(Path(config.train), Path(config.dev), Path(config.test) if config.test else None)
    else:
        files = files_of(name, config.data)
    missing = [path for path in files.all() if not path.is_file()]
    if missing:
        raise ValueError(f"{missing[0]} is missing: say --data, or --train and --dev")
    return files


def _finetune(name: str, config: Config, out: Path, device: torch.device, console: Console) -> list[Result]:
    """The results of all seeds, of which those that are not there yet are learned first."""
    source = _learned_mnli(out) if config.mnli_first and name in glue.FROM_MNLI else config.model
    pretrained = open_encoder(source)
    plan = _plan(name, config)
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


def _settings(name: str, config: Config, plan: _Plan, pretrained: Pretrained) -> dict[str, Any]:
    """All that decides a result, but the seed."""
    shape = pretrained.encoder.config
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
    specials = pretrained.tokenizer.specials
    networks = [_network(task, pretrained.encoder, config.head, seed).to(device) for seed in seeds]
    examples = Examples(task.train.rows, specials, device, task.kind == "tagging")
    tunings, cost = tune(networks, examples, RecipeConfig(**settings["recipe"]), seeds)

    def outputs(tuning: Tuning, split: Split) -> list[np.ndarray]:
        return predict(tuning.network, Examples(split.rows, specials, device, task.kind == "tagging"))

    for seed, tuning in zip(seeds, tunings, strict=True):
        metrics = {name: task.metrics(split.known, outputs(tuning, split)) for name, split in task.dev.items()}
        answers = {
            f"{name}{task.suffix}": task.answers(split.known, outputs(tuning, split))
            for name, split in task.test.items()
        }
        score = next(iter(metrics.values()))[task.metric]
        result = Result(
            seed, task.metric, score, metrics, cost._asdict() | {"seeds": len(seeds), "device": describe(device)}
        )
        model = tuning.whole() if config.keep != "none" and config.head == "transformers" else None
        write(folder, result, settings, answers, model, pretrained.tokenizer)
        console.print(f"{task.name}, seed {seed}: {_in_words(metrics)}; {cost.steps:,} steps in {cost.seconds:.0f} s")


def _network(task: Task, encoder: Encoder, style: Style, seed: int) -> Tuned:
    network = Tuned(deepcopy(encoder), task.kind, style, task.labels)
    begin_head(network.head, style, seed)
    return network


def _in_words(metrics: dict[str, dict[str, float]]) -> str:
    return "; ".join(
        f"{split} " + ", ".join(f"{name} {100 * value:.1f}" for name, value in found.items() if 0 <= abs(value) <= 1)
        for split, found in metrics.items()
    )


def _tell(found: dict[str, list[Result]], out: Path, console: Console) -> None:
    """One table for the eye, and the same in OUT/results.md and OUT/results.json."""
    summaries = {name: summary([result.score for result in results]) for name, results in found.items()}
    header = ["task", "metric", "median", "mean", "sd", "seeds", *PUBLISHED]
    lines = results_table(summaries, {name: results[0].metric for name, results in found.items()}, glue.AVERAGED)
    write_atomically(out / "results.md", markdown(header, lines).encode())
    write_json(
        out / "results.json", {name: [result._asdict() for result in results] for name, results in found.items()}
    )
    table = Table(*header, box=None)
    for line in lines:
        table.add_row(*line)
    console.print(table)
    console.print(f"results: {out / 'results.md'}")
