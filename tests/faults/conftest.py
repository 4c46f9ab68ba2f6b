"""What is done to commands, and what they are done with: a little text, a network that has learned from it, a task."""

import functools
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import ADJECTIVES, NOUNS
from elektron.train.metrics import read
from faults.commands import Commands

VERBS = ("prepare", "pretrain", "export", "finetune")
MODEL = (
    "--model.layers 1 --model.width 32 --model.heads 2 --model.feedforward-width 64 --model.embedding-width 16 "
    "--model.positions 32 --model.dropout 0.1 --model.attention-dropout 0.1 --schedule.warmup-steps 3 --device cpu"
).split()
WATCH = "--watch.log-every 3 --watch.evaluate-every 8 --watch.evaluate-rows 8 --watch.checkpoint-every 4".split()
PHASES = ["--train.phases", "30", "16", "4"]
TUNING = (
    "--recipe.learning-rate 3e-3 --recipe.layer-decay 1 --recipe.epochs 2 --recipe.batch 8 --length 24 "
    "--seeds 3 --keep all --device cpu"
).split()


def verbs(*often: str) -> list[Any]:
    """The commands that write, for `parametrize`; but for those that are tried often, in the full form only."""
    return [verb if verb in often else pytest.param(verb, marks=pytest.mark.thorough) for verb in VERBS]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.faults)
    if config.getoption("--faults") == "short":
        thorough = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=thorough)
        items[:] = [item for item in items if item not in thorough]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="session")
def commands() -> Commands:
    return Commands()


@pytest.fixture(scope="session")
def prepared(workshop: Path, commands: Commands, text_file: Path) -> Path:
    """A folder of shards."""
    folder = workshop / "data"
    commands.done("prepare", "--corpus", text_file, "--out", folder, "--vocab-size", 128, "--processes", 1)
    return folder


@pytest.fixture(scope="session")
def finished(workshop: Path, commands: Commands, prepared: Path) -> Path:
    """A run that nothing has happened to."""
    run = workshop / "run"
    commands.done("pretrain", "--data", prepared, "--run", run, *MODEL, *WATCH, *PHASES)
    return run


@pytest.fixture(scope="session")
def glue(workshop: Path) -> Path:
    """CoLA: whether a sentence has a cat in it."""
    draw = np.random.default_rng(0)
    folder = workshop / "glue" / "CoLA"
    folder.mkdir(parents=True)
    for name, count in (("train", 48), ("dev", 16)):
        words = ((draw.choice(ADJECTIVES), draw.choice(["cat", "dog"]), draw.choice(NOUNS)) for _ in range(count))
        lines = (f"x\t{int(animal == 'cat')}\t\tthe {how} {animal} sees a {what}.\n" for how, animal, what in words)
        (folder / f"{name}.tsv").write_text("".join(lines))
    return folder.parent


@dataclass(frozen=True)
class Undisturbed:
    """What a command comes to, if nothing happens to it."""

    words: list[object]
    """The command."""
    out: Path
    """Where it writes."""
    contents: dict[str, bytes]
    """What it has written there."""
    seconds: float


@pytest.fixture(scope="session")
def undisturbed(
    commands: Commands, workshop: Path, text_file: Path, prepared: Path, finished: Path, glue: Path
) -> Callable[[str], Undisturbed]:
    """The commands that write, by their verb; what they have written once is removed again."""
    flags: dict[str, list[object]] = {
        "prepare": ["--corpus", text_file, "--vocab-size", 128, "--processes", 1, "--out"],
        "pretrain": ["--data", prepared, *MODEL, *WATCH, *PHASES, "--run"],
        "export": [finished, "--to"],
        "finetune": ["cola", "--model", finished, "--data", glue, *TUNING, "--out"],
    }

    @functools.cache
    def find(verb: str) -> Undisturbed:
        out = workshop / verb / "out"
        words = [verb, *flags[verb], out]
        seconds = commands.done(*words).seconds
        found = Undisturbed(words, out, contents(out), seconds)
        shutil.rmtree(out)
        return found

    return find


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of 64 MB in the place of a folder."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "elektron", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("no disk of its own: mounting is refused here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, but for the time that things took and what is drawn from it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "report.html")
    return {str(path.relative_to(folder)): _timeless(path) for path in files}


def _timeless(path: Path) -> bytes:
    if path.name == "metrics.jsonl":
        return json.dumps([{k: v for k, v in record.items() if k != "clock"} for record in read(path.parent)]).encode()
    if path.name in ("result.json", "results.json"):
        return json.dumps(_without_cost(json.loads(path.read_text()))).encode()
    return path.read_bytes()


def _without_cost(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_cost(inside) for name, inside in value.items() if name not in ("cost", "sha256")}
    return [_without_cost(inside) for inside in value] if isinstance(value, list) else value
