"""Texts and pairs of texts with a class or a value each: rows for the encoder, and the answers back."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from elektron.data.examples import Row, laid_out
from elektron.data.tokenizer import Tokenizer
from elektron.model.task_heads import Kind
from elektron.tasks import metrics
from elektron.tasks.task import Outputs, Split

_TOLD = 8
_AT_ONCE = 10_000
"""Texts that the tokenizer gets together."""


class Text(NamedTuple):
    """One or two texts, and their label if it is known."""

    id: str
    first: str
    second: str | None
    label: str | None


class Known(NamedTuple):
    """What answers are counted by."""

    ids: list[str]
    targets: np.ndarray | None
    """None where labels are not known."""


Metric = Callable[[np.ndarray, np.ndarray], float]
METRICS: dict[str, Metric] = {
    "accuracy": metrics.accuracy,
    "f1": metrics.f1,
    "matthews": metrics.matthews,
    "pearson": metrics.pearson,
    "spearman": metrics.spearman,
}
"""Of predicted and true classes or values."""


def encoded(
    texts: Sequence[Text], tokenizer: Tokenizer, kind: Kind, labels: tuple[str, ...], longest: int, source: str
) -> tuple[Split, int]:
    """Rows of at most `longest` tokens, and how many of them lost tokens to that. `source` is where the texts are from,
    for messages."""
    targets = [_target(text, kind, labels, f"{source}, example {n}") for n, text in enumerate(texts, 1)]
    has_labels = all(text.label is not None for text in texts)
    firsts = _encoded(tokenizer, [text.first for text in texts])
    seconds = _encoded(tokenizer, [text.second or "" for text in texts])
    rows, cut = [], 0
    for text, first, second, target in zip(texts, firsts, seconds, targets, strict=True):
        pair = None if text.second is None else second
        tokens, begin = laid_out(tokenizer.specials, first, pair, longest)
        cut += len(tokens) < len(first) + len(second) + (2 if pair is None else 3)
        rows.append(Row(tokens, begin, target))
    return Split(rows, Known([text.id for text in texts], np.array(targets) if has_labels else None)), cut


def _target(text: Text, kind: Kind, labels: tuple[str, ...], where: str) -> np.ndarray:
    if text.label is None:
        return np.array(0.0 if kind == "regression" else 0)
    if kind == "regression":
        try:
            value = float(text.label)
        except ValueError:
            raise ValueError(f"{where}: {text.label!r} is not a number") from None
        if not np.isfinite(value):
            raise ValueError(f"{where}: {text.label!r} is not a finite number")
        return np.array(value)
    if text.label not in labels:
        some = ", ".join(labels[:_TOLD]) + (" and more: is it a number (--kind regression)?" if labels[_TOLD:] else "")
        raise ValueError(f"{where}: unknown label {text.label!r}; known are {some}")
    return np.array(labels.index(text.label))


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[np.ndarray]:
    for start in range(0, len(texts), _AT_ONCE):
        ids, lengths = tokenizer.encode(texts[start : start + _AT_ONCE])
        yield from np.split(ids.astype(np.int64), np.cumsum(lengths)[:-1])


def predicted(outputs: Outputs, kind: Kind) -> np.ndarray:
    """The class or the value of each row."""
    scores = np.stack(outputs)
    return scores[:, 0] if kind == "regression" else scores.argmax(1)


def counted(kind: Kind, names: Sequence[str]) -> Callable[[Known, Outputs], dict[str, float]]:
    """The metrics of such a task."""

    def count(known: Known, outputs: Outputs) -> dict[str, float]:
        assert known.targets is not None, "labels are needed to count answers"
        found = predicted(outputs, kind)
        return {name: METRICS[name](found, known.targets) for name in names}

    return count


def labelled(known: Known, labels: Sequence[str]) -> dict[str, str]:
    """The file that GLUE's server takes: each example's index and label."""
    lines = [f"{index}\t{label}\n" for index, label in zip(known.ids, labels, strict=True)]
    return {".tsv": "".join(["index\tprediction\n", *lines])}
