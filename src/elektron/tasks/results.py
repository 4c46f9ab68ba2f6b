"""Results of fine-tuning: what several seeds come to, beside what was published."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

PUBLISHED: dict[str, dict[str, float]] = {
    "Small, OWT": {
        "cola": 56.8,
        "sst": 88.3,
        "mrpc": 87.4,
        "sts": 86.8,
        "qqp": 88.3,
        "mnli": 78.9,
        "qnli": 87.9,
        "rte": 68.5,
    },
    "Small": {
        "cola": 57.0,
        "sst": 91.2,
        "mrpc": 88.0,
        "sts": 87.5,
        "qqp": 89.0,
        "mnli": 81.3,
        "qnli": 88.4,
        "rte": 66.7,
        "squad": 75.8,
        "squad2": 70.1,
        "chunk": 96.5,
    },
    "Base": {
        "cola": 67.7,
        "sst": 95.1,
        "mrpc": 89.5,
        "sts": 91.2,
        "qqp": 91.5,
        "mnli": 88.8,
        "qnli": 93.2,
        "rte": 82.7,
        "squad": 86.8,
        "squad2": 80.5,
        "chunk": 97.1,
    },
    "Large": {
        "cola": 69.1,
        "sst": 96.9,
        "mrpc": 90.8,
        "sts": 92.6,
        "qqp": 92.4,
        "mnli": 90.9,
        "qnli": 95.0,
        "rte": 88.0,
        "squad": 89.7,
        "squad2": 88.1,
        "chunk": 97.2,
    },
}
"""Medians over many seeds on the development sets, in percent: google-research/electra, its README (2020). Of SQuAD the
exact matches, of chunking F1 on the test set. All but the first are the released models, trained longer on more text
than the paper's; OWT is OpenWebText."""


NO_SHARES = ("total", "thresh")
"""What the names of metrics end with that are no shares of one."""


class Summary(NamedTuple):
    """A metric over seeds."""

    median: float
    mean: float
    deviation: float
    """Of the sample; 0 of one seed."""
    seeds: int


def summary(values: Sequence[float]) -> Summary:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Summary(statistics.median(values), statistics.fmean(values), deviation, len(values))


def middle(values: Sequence[float]) -> int:
    """The number of the one that is the median, or the lower of the two in the middle; of equals the first."""
    return values.index(statistics.median_low(values))


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def results_table(
    found: Mapping[str, Mapping[str, Summary]], averaged: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """The header, and a line for each task and metric: what our seeds came to, and, beside the first metric of a task,
    what was published; and one for the average of `averaged`, if all are there."""
    published = {name: of for name, of in PUBLISHED.items() if set(of) & set(found)}
    lines = []
    for task, metrics in found.items():
        for number, (metric, of) in enumerate(metrics.items()):
            theirs = ["" if number else _percent(known.get(task)) for known in published.values()]
            lines.append(["" if number else task, metric, *_cells(of), *theirs])
    if set(averaged) <= set(found):
        firsts = [next(iter(found[task].values())) for task in averaged]
        ours = [statistics.fmean(getattr(of, name) for of in firsts) for name in ("median", "mean")]
        theirs = [_percent(statistics.fmean(known[task] for task in averaged)) for known in published.values()]
        lines.append(["average", "", *(f"{100 * value:.1f}" for value in ours), "", "", *theirs])
    return ["task", "metric", "median", "mean", "sd", "seeds", *published], lines


def _cells(of: Summary) -> list[str]:
    return [*(f"{100 * value:.1f}" for value in of[:3]), str(of.seeds)]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
