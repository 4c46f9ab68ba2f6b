"""What is on disk of a task that was learned with several seeds.

TASK/seed-0/  result.json  losses.tsv  predictions/  model/
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from elektron.data.files import (
    fields_of,
    new_folder,
    read_json,
    remove_folder,
    sealed,
    unsealed,
    write_atomically,
    write_json,
)
from elektron.data.tokenizer import Tokenizer
from elektron.interop.card import task_card
from elektron.interop.huggingface import save
from elektron.model.task_heads import Tuned
from elektron.tasks.glue import AVERAGED
from elektron.tasks.results import NO_SHARES, PUBLISHED, Summary, markdown, middle, results_table, summary
from elektron.train.report import quality_page

MODEL, PREDICTIONS = "model", "predictions"
_RESULT, _LOSSES = "result.json", "losses.tsv"
_TABLE, _RESULTS, _QUALITY = "results.md", "results.json", "quality.html"


class Result(NamedTuple):
    """What a seed came to."""

    seed: int
    step: int
    """Updates of pre-training that the encoder had seen; 0 where nobody knows."""
    metric: str
    """The one of tables."""
    score: float
    """It, on the first development set."""
    metrics: dict[str, dict[str, float]]
    """Of each development set."""
    cost: dict[str, Any]


def find(task: Path, seed: int, settings: Mapping[str, Any]) -> Result | None:
    """The result of a seed, if it is there; one that other settings came to is refused."""
    path = _folder(task, seed) / _RESULT
    if not path.exists():
        return None
    content = _read(path)
    if content["settings"] != settings:
        changed = [name for name, value in settings.items() if content["settings"].get(name) != value]
        raise ValueError(f"{path} was made with other settings ({', '.join(changed)}): choose another --out")
    return Result(**fields_of(content["result"], Result._fields, path))


def _read(path: Path) -> dict[str, Any]:
    return fields_of(unsealed(read_json(path), path), ("settings", "result"), path)


def write(
    task: Path,
    result: Result,
    settings: Mapping[str, Any],
    losses: Sequence[float],
    answers: Mapping[str, str],
    network: Tuned | None,
    tokenizer: Tokenizer,
) -> None:
    """All of a seed, whole or not at all."""
    folder = _folder(task, result.seed)
    with new_folder(folder) as unfinished:
        for name, content in answers.items():
            (unfinished / PREDICTIONS).mkdir(exist_ok=True)
            write_atomically(unfinished / PREDICTIONS / name, content.encode())
        if network is not None:
            card = task_card(network, f"{folder / MODEL}", result.metrics, settings)
            save(network, tokenizer, unfinished / MODEL, card)
        lines = (f"{step}\t{loss:.6g}\n" for step, loss in enumerate(losses, 1))
        write_atomically(unfinished / _LOSSES, "".join(["step\tloss\n", *lines]).encode())
        write_json(unfinished / _RESULT, sealed({"settings": settings, "result": result._asdict()}))


def keep_one(task: Path, chosen: int, seeds: Sequence[int]) -> bool:
    """Remove the networks of the other `seeds`, if that of the chosen one is there."""
    if not (_folder(task, chosen) / MODEL).is_dir():
        return False
    for seed in seeds:
        if seed != chosen and (_folder(task, seed) / MODEL).is_dir():
            remove_folder(_folder(task, seed) / MODEL)
    return True


def middle_model(task: Path) -> Path | None:
    """The network of the median of those seeds whose networks are there."""
    models = sorted(task.glob(f"seed-*/{MODEL}"))
    if not models:
        return None
    scores = [
        unsealed(read_json(model.parent / _RESULT), model.parent / _RESULT)["result"]["score"] for model in models
    ]
    return models[middle(scores)]


def _folder(task: Path, seed: int) -> Path:
    return task / f"seed-{seed}"


def note(name: str, results: Sequence[Result], out: Path) -> None:
    """Add a task's results to those of others in OUT/results.json, and to the table in OUT/results.md."""
    before = read_json(out / _RESULTS) if (out / _RESULTS).exists() else {}
    write_json(out / _RESULTS, before | {name: [result._asdict() for result in results]})
    write_atomically(out / _TABLE, markdown(*_table(out)).encode())


def tell_one(out: Path, console: Console) -> None:
    """The table, for the eye."""
    _show(*_table(out), console)
    console.print(f"results: {out / _TABLE}", markup=False)


def _table(out: Path) -> tuple[list[str], list[list[str]]]:
    found = {
        name: [Result(**fields_of(result, Result._fields, out / _RESULTS)) for result in results]
        for name, results in read_json(out / _RESULTS).items()
    }
    return results_table({name: _summaries(results) for name, results in found.items()}, AVERAGED)


def _summaries(results: Sequence[Result]) -> dict[str, Summary]:
    """Of every metric, the one of tables first; those of a second development set by its name."""
    first = results[0]
    found = {first.metric: summary([result.score for result in results])}
    for number, (split, metrics) in enumerate(first.metrics.items()):
        for name in metrics:
            label = f"{split} {name}" if number else name
            if label not in found and not name.endswith(NO_SHARES):
                found[label] = summary([result.metrics[split][name] for result in results])
    return found


def tell_all(out: Path, folders: Sequence[Path], console: Console) -> None:
    """The tables of several models side by side, and their scores against the steps they have seen."""
    found = {folder.name: read_json(folder / _RESULTS) for folder in folders}
    tasks = [task for task in next(iter(found.values())) if all(task in of_model for of_model in found.values())]
    medians = {
        name: {task: 100 * summary([result["score"] for result in of_model[task]]).median for task in tasks}
        for name, of_model in found.items()
    }
    header = ["model", *tasks]
    lines = [[name, *(f"{of_model[task]:.1f}" for task in tasks)] for name, of_model in medians.items()]
    write_atomically(out / _TABLE, markdown(header, lines).encode())
    _show(header, lines, console)
    steps = {name: of_model[tasks[0]][0]["step"] for name, of_model in found.items()}
    scores = {task: [(steps[name], medians[name][task]) for name in found if steps[name]] for task in tasks}
    if not any(steps.values()):
        console.print(
            f"results: {out / _TABLE}; how long these were trained is not known, so nothing is drawn", markup=False
        )
        return
    page = quality_page(out.name, {task: points for task, points in scores.items() if points}, PUBLISHED["Small, OWT"])
    write_atomically(out / _QUALITY, page.encode())
    console.print(f"results: {out / _TABLE}, drawn in {out / _QUALITY}", markup=False)


def _show(header: Sequence[str], lines: Sequence[Sequence[str]], console: Console) -> None:
    table = Table(*header, box=None)
    for line in lines:
        table.add_row(*line)
    console.print(table)
