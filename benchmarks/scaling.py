"""The tables of docs/scaling.md: small, base and large on many H200s, computed from their steps on one.

    python benchmarks/scaling.py

Nothing is measured here. The steps are those of docs/performance.md (one H200, torch 2.11.0, commit 6dae239,
2026-11-16), with the presets' dropout of 0.1; everything else is `ClusterConfig`.
"""

from typing import NamedTuple

import torch

from elektron.data.tokenizer import Specials
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Objective
from elektron.objectives.table import build
from elektron.train.scaling import (
    ClusterConfig,
    MeasuredStep,
    PhaseOf,
    all_reduce_seconds,
    bytes_sent,
    checkpoint_interval,
    checkpoint_seconds,
    failure_seconds,
    layer_seconds,
    lost_share,
)
from elektron.verbs.forecast import duration, header, step_of, table
from elektron.verbs.runs import RunConfig, with_presets

GPUS = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024
FEWER = 1, 8, 64, 1024
PRICE = 3.0
"""Dollars for an hour of a GPU: an example, and nobody's offer."""
VOCABULARY = 30522
COPY_PEAK = 4.23e12


class Known(NamedTuple):
    """A step on one H200, by docs/performance.md."""

    preset: str
    rows: int
    parts: int
    seconds: float


SMALL, WIDER = Known("small", 128, 1, 5.11e-3), Known("small", 1024, 1, 34.4e-3)
BASE, LARGE = Known("base", 256, 4, 0.241), Known("large", 256, 4, 0.672)


def model_of(preset: str) -> tuple[RunConfig, Objective]:
    config = with_presets(RunConfig(), (preset,))
    with torch.device("meta"):
        return config, build(config.model, config.objective, Lexicon(Specials(0, 1, 2, 3, 4), VOCABULARY))


def measured(known: Known) -> MeasuredStep:
    return step_of(model_of(known.preset)[1], known.seconds, known.rows, known.parts, COPY_PEAK)


def phases_of(known: Known, grows: bool) -> list[PhaseOf]:
    """The preset's schedule: in its own batch, which may be some times the measured one, in as many more parts; or, for
    a batch that grows with the GPUs, in the measured one."""
    config, model = model_of(known.preset)
    ((steps, length, rows),) = config.train.phases
    times = 1 if grows else rows // known.rows
    step = step_of(model, known.seconds * times, known.rows * times, known.parts * times, COPY_PEAK)
    return [PhaseOf(steps * rows // step.rows, length, step)]


def markdown(lines: list[list[str]]) -> str:
    head, *rest = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([head, "|---" * len(lines[0]) + "|", *rest])


def sent(cluster: ClusterConfig) -> str:
    """What a step sends, and how long that takes where nothing hides it."""
    lines = [["", "parameters", "of layers' matrices", "sent by a GPU, of 8", "takes", "of 1,024", "takes"]]
    for known in (SMALL, BASE, LARGE):
        step = measured(known)
        size = 4 * step.parameters
        cells = [known.preset, f"{step.parameters / 1e6:,.1f} million", f"{step.matrices / step.parameters:.0%}"]
        for gpus in (8, 1024):
            seconds = all_reduce_seconds(size, gpus, cluster)
            cells += [f"{bytes_sent(size, gpus) / 1e6:,.0f} MB", f"{seconds * 1e3:,.2f} ms"]
        lines.append(cells)
    return markdown(lines)


def failures(cluster: ClusterConfig) -> str:
    """How often to save, and what is lost all the same: of large, for means of hours between failures of one GPU."""
    cost = checkpoint_seconds(measured(LARGE).parameters, cluster)
    lines = [
        ["hours of a GPU between failures", "GPUs", "a failure every", "save every", "time lost", "if saved hourly"]
    ]
    for hours in (5_000.0, 50_000.0):
        for gpus in (8, 64, 1024):
            between = failure_seconds(gpus, ClusterConfig(gpu_failure_hours=hours))
            interval = checkpoint_interval(cost, between)
            lost = [f"{lost_share(t, cost, between, cluster.restart_seconds):.2%}" for t in (interval, 3600.0)]
            lines.append([f"{hours:,.0f} hours", f"{gpus:,}", duration(between), duration(interval), *lost])
    return markdown(lines)


def main() -> None:
    cluster = ClusterConfig()
    found = layer_seconds(measured(SMALL), measured(WIDER))
    print(f"A layer without rows, from small in 128 and in 1,024 rows: {found * 1e6:.1f} us\n\n{sent(cluster)}\n")
    for known in (SMALL, BASE, LARGE):
        for grows, what in ((False, "the batch cut among the GPUs"), (True, "a batch for each GPU")):
            gpus = FEWER if grows else GPUS
            lines = [header(PRICE), *table(phases_of(known, grows), gpus, grows, cluster, PRICE)]
            print(f"{known.preset}, {what}:\n\n{markdown(lines)}\n")
    print(failures(cluster))


if __name__ == "__main__":
    main()
