"""A task: examples to learn from, examples to be asked about, and how the answers are counted. What differs from task
to task is data and two functions; nothing is inherited."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elektron.data.examples import Row
from elektron.model.task_heads import Kind

Outputs = Sequence[np.ndarray]
"""Scores of a network for each row: [C], or [T, C] with a line for each token."""


class Split(NamedTuple):
    """Rows for the encoder, and what the task itself has to know of them to count or to write answers."""

    rows: list[Row]
    known: Any


class Task(NamedTuple):
    """What `elektron finetune` works on."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    """Names of the scores."""
    train: Split
    dev: dict[str, Split]
    test: dict[str, Split]
    """By the names that the files of a submission have."""
    metric: str
    """Of the metrics, the one that tables have."""
    metrics: Callable[[Any, Outputs], dict[str, float]]
    """From what a split knows and a network's scores."""
    answers: Callable[[Any, Outputs], dict[str, str]]
    """What is written of a split: how the files' names end, and their contents."""
    notes: tuple[str, ...] = ()
    """What was done to the examples, counted, in words."""


class Files(NamedTuple):
    """Where the examples are; `test` may be missing."""

    train: Path
    dev: Path
    test: Path | None

    def all(self) -> dict[str, Path]:
        """By what they are for."""
        return {name: path for name, path in self._asdict().items() if path is not None}
