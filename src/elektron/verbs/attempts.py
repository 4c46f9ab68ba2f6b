"""What is on disk of a task that was learned with several seeds.

TASK/seed-0/  result.json  predictions/  model/
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from elektron.data.files import new_folder, read_json, remove_folder, write_atomically, write_json
from elektron.data.tokenizer import Tokenizer
from elektron.interop.card import task_card
from elektron.interop.huggingface import save
from elektron.model.task_heads import Tuned

MODEL, PREDICTIONS = "model", "predictions"
_RESULT = "result.json"


class Result(NamedTuple):
    """What a seed came to."""

    seed: int
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
    content = read_json(path)
    if content["settings"] != settings:
        changed = [name for name, value in settings.items() if content["settings"].get(name) != value]
        raise ValueError(f"{path} was made with other settings ({', '.join(changed)}): choose another --out")
    return Result(**content["result"])


def write(
    task: Path,
    result: Result,
    settings: Mapping[str, Any],
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
        write_json(unfinished / _RESULT, {"settings": settings, "result": result._asdict()})


def keep_one(task: Path, seed: int) -> None:
    """Remove the networks of all other seeds."""
    for model in task.glob(f"seed-*/{MODEL}"):
        if model.parent != _folder(task, seed):
            remove_folder(model)


def _folder(task: Path, seed: int) -> Path:
    return task / f"seed-{seed}"
