"""How good the encoders of a comparison are: held-out losses, linear probes and tasks, over FLOPs and seeds.

RUN/quality.json                      what was found of each checkpoint, so that nothing is asked twice
OUT/results.json  results.md  compare.html
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from elektron.data.examples import Examples
from elektron.data.files import read_json, write_atomically, write_json
from elektron.tasks.protocols import SourceConfig, plan_of
from elektron.tasks.results import markdown
from elektron.tasks.words import TAGGING
from elektron.train import metrics
from elektron.train.charts import COLOURS, Curve, chart, page, table
from elektron.train.checkpoint import folder_of
from elektron.train.device import DeviceName, choose_device
from elektron.train.probe import probe
from elektron.verbs import finetune
from elektron.verbs.runs import open_encoder

_FILE, _RESULTS, _TABLE, _PAGE = "quality.json", "results.json", "results.md", "compare.html"
_HELD = ("_loss", "_auc")
"""How the names of those held-out metrics end that a table has room for."""


class Quality(NamedTuple):
    """What is known of a run."""

    flops: float
    tokens: int
    seconds: float
    """Of training."""
    held: dict[str, float]
    """Held-out metrics of its own objective, at the end."""
    probes: dict[str, list[tuple[float, float]]]
    """Of each probe, (FLOPs, score) of checkpoint after checkpoint."""
    tasks: dict[str, list[tuple[float, float]]]
    """Of each fine-tuned task, (FLOPs, median score)."""


def check(probes: Sequence[str], tasks: Sequence[str]) -> None:
    """Refuse what cannot be asked, before anything is trained."""
    for name, folder in map(_pair, probes):
        if name not in TAGGING:
            raise ValueError(f"--probes {name}={folder}: probes are of words' tags: {', '.join(TAGGING)}")
        plan_of(name, SourceConfig(task=name, data=folder))
    for name, folder in map(_pair, tasks):
        plan_of(name, SourceConfig(task=name, data=folder))


def _pair(said: str) -> tuple[str, str]:
    name, sign, folder = said.partition("=")
    if not sign or not folder:
        raise ValueError(f"--probes and --tasks are NAME=FOLDER, not {said!r}")
    return name, folder


def of_run(
    run: Path,
    points: Mapping[int, float],
    probes: Sequence[str],
    tasks: Sequence[str],
    task_seeds: int,
    device: DeviceName,
    console: Console,
) -> Quality:
    """All that is asked of a finished run; `points` are the steps to probe and their FLOPs."""
    known: dict[str, Any] = read_json(run / _FILE) if (run / _FILE).exists() else {}
    for name, folder in map(_pair, probes):
        for step in points:
            if str(step) not in known.setdefault(name, {}):
                known[name][str(step)] = _probed(name, folder, folder_of(run, step), device)
                write_json(run / _FILE, known)
                console.print(f"probe {name} at step {step:,}: {100 * known[name][str(step)]:.1f}")
    records = list(metrics.read(run))
    train = [record for record in records if record["kind"] == "train"]
    held = next(record for record in reversed(records) if record["kind"] == "held")
    facts = next(record for record in records if record["kind"] == "run")
    return Quality(
        facts["flops"],
        facts["tokens"],
        sum(record["clock"]["seconds"] for record in train),
        {name: value for name, value in held.items() if name.endswith(_HELD)},
        {name: [(flops, known[name][str(step)]) for step, flops in points.items()] for name, _ in map(_pair, probes)},
        {
            name: [(flops, _tuned(name, folder, run, step, task_seeds, device)) for step, flops in points.items()]
            for name, folder in map(_pair, tasks)
        },
    )


def _probed(name: str, folder: str, checkpoint: Path, device_name: DeviceName) -> float:
    pretrained, device = open_encoder(checkpoint), choose_device(device_name)
    plan = plan_of(name, SourceConfig(task=name, data=folder))
    task = plan.open(pretrained.tokenizer, min(plan.length, pretrained.encoder.config.positions))
    dev = next(iter(task.dev.values()))
    train, asked = (Examples(split.rows, pretrained.tokenizer.specials, device, True) for split in (task.train, dev))
    outputs = probe(pretrained.encoder.to(device), train, asked, len(task.labels))
    return task.metrics(dev.known, outputs)[task.metric]


def _tuned(name: str, folder: str, run: Path, step: int, seeds: int, device: DeviceName) -> float:
    """The median score of a task, by `elektron finetune`, which asks nothing twice either."""
    checkpoint = folder_of(run, step)
    out = run / "finetuned" / checkpoint.name
    where = ["--model", str(checkpoint), "--data", folder, "--out", str(out), "--device", device]
    finetune.main([name, *where, "--seeds", str(seeds), "--keep", "none"])
    return statistics.median(result["score"] for result in read_json(out / _RESULTS)[name])


def tell(out: Path, found: Mapping[str, Sequence[Quality]]) -> list[Path]:
    """Write all that is known so far; returns the files."""
    content = {kind: [quality._asdict() for quality in qualities] for kind, qualities in found.items()}
    write_json(out / _RESULTS, content)
    write_atomically(out / _TABLE, markdown(*_table(found)).encode())
    write_atomically(out / _PAGE, _page(out.name, found).encode())
    return [out / _RESULTS, out / _TABLE, out / _PAGE]


def _table(found: Mapping[str, Sequence[Quality]]) -> tuple[list[str], list[list[str]]]:
    first = next(iter(found.values()))[0]
    held = list(dict.fromkeys(name for of in found.values() for name in of[0].held))
    header = [
        *("objective", "FLOPs", "tokens", "seconds"),
        *(f"{name} probe" for name in first.probes),
        *first.tasks,
        *(name.replace("_", " ") for name in held),
    ]
    lines = []
    for kind, of in found.items():
        lines.append(
            [
                *(kind, f"{of[0].flops:.3g}", f"{of[0].tokens:,}", f"{statistics.fmean(q.seconds for q in of):,.0f}"),
                *(_spread([100 * quality.probes[name][-1][1] for quality in of], 1) for name in first.probes),
                *(_spread([100 * quality.tasks[name][-1][1] for quality in of], 1) for name in first.tasks),
                *(_spread([q.held[name] for q in of], 3) if name in of[0].held else "" for name in held),
            ]
        )
    return header, lines


def _spread(values: list[float], digits: int) -> str:
    """The mean, and how far seeds lie from it."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def _page(name: str, found: Mapping[str, Sequence[Quality]]) -> str:
    header, lines = _table(found)
    first, figures = next(iter(found.values()))[0], []
    styles = {kind: COLOURS[number % len(COLOURS)] for number, kind in enumerate(found)}
    for probed in first.probes:
        curves = [_curve(kind, styles[kind], [q.probes[probed] for q in of]) for kind, of in found.items()]
        figures.append(chart(f"{probed}: linear probe, percent by FLOPs", curves, along="FLOPs"))
    for task in first.tasks:
        curves = [_curve(kind, styles[kind], [q.tasks[task] for q in of]) for kind, of in found.items()]
        figures.append(chart(f"{task}: fine-tuned, percent by FLOPs", curves, along="FLOPs"))
    said = "The same data and the same budget for each objective; bars are standard deviations over seeds."
    drawn = f"<p class=quiet>{said}</p>\n<div class=charts>{''.join(figures)}</div>"
    return page(name, f"{drawn}\n<h2>Table</h2>\n{table(header, lines)}")


def _curve(kind: str, style: str, seeds: Sequence[Sequence[tuple[float, float]]]) -> Curve:
    """The means over seeds of (FLOPs, score), point by point."""
    points = [[100 * score for _, score in at_once] for at_once in zip(*seeds, strict=True)]
    spreads = tuple(statistics.stdev(scores) if len(scores) > 1 else 0.0 for scores in points)
    places = [flops for flops, _ in seeds[0]]
    return Curve(kind, style, list(zip(places, map(statistics.fmean, points), strict=True)), spreads)
