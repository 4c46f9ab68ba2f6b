"""The tables and curves of docs/results.md, from what is stored of the runs in docs/experiments/runs.

    python runs/tables.py            write them
    python runs/tables.py --check    tell whether they are as they would be written

A run's folder there (runs/keep.py makes it) has config.toml and metrics.jsonl of its pre-training, results.json of its
fine-tuning, eye/ with what it sees by itself, and made.json: what it was for, and the commit. Runs that differ in their
seed are called the same up to `-seed-`. A table stands between `<!-- table NAME -->` and `<!-- end -->`; the
curves of all runs whose names begin with NAME- are docs/experiments/NAME.svg.
"""

import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from curves import drawing
from elektron.config import read_toml
from elektron.tasks.results import PUBLISHED, markdown, summary

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "docs" / "experiments" / "runs"
PAGES = (ROOT / "docs" / "results.md", ROOT / "README.md")
DRAWN = ("speedrun", "against", "quarter", "eighth", "ladder", "quirks")
FIVE = ("cola", "sst", "mrpc", "sts", "rte")
SIX = ("cola", "sst", "mrpc", "sts", "qqp", "rte")
ELECTRA_PYTORCH = {"cola": 58.72, "sst": 88.03, "mrpc": 86.04, "sts": 86.16, "qqp": 88.63, "rte": 67.46}
"""Means of ten fine-tunings, as the README of richarddwang/electra_pytorch has them."""
NAMES = {"cola": "CoLA", "sst": "SST-2", "mrpc": "MRPC", "sts": "STS-B", "qqp": "QQP", "rte": "RTE"}
PLACE = re.compile(r"(?<=<!-- table )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


class Run(NamedTuple):
    """What is stored of one."""

    name: str
    made: dict[str, Any]
    config: dict[str, Any]
    records: list[dict[str, Any]]
    results: dict[str, list[dict[str, Any]]]
    eye: dict[str, Any]

    def score(self, task: str) -> float | None:
        """The median over seeds, in percent."""
        if task not in self.results:
            return None
        return 100 * summary([result["score"] for result in self.results[task]]).median

    def mean(self, tasks: Sequence[str]) -> float | None:
        scores = [score for task in tasks if (score := self.score(task)) is not None]
        return statistics.fmean(scores) if len(scores) == len(tasks) else None

    @property
    def facts(self) -> dict[str, Any]:
        return next(record for record in self.records if record["kind"] == "run")

    @property
    def held(self) -> dict[str, Any]:
        return [record for record in self.records if record["kind"] == "held"][-1]

    @property
    def done(self) -> float:
        """The share of its steps that it has made: less than one where it was cut short."""
        steps = [record["step"] for record in self.records if record["kind"] == "train"]
        return steps[-1] / self.facts["steps"]

    @property
    def minutes(self) -> float:
        """Of training, without evaluations and checkpoints, as the run's own clock has it."""
        return self.made["training_seconds"] / 60


def read_runs(folder: Path = RUNS) -> dict[str, Run]:
    return {path.parent.name: _read(path.parent) for path in sorted(folder.glob("*/made.json"))}


def _read(folder: Path) -> Run:
    def json_of(name: str) -> dict[str, Any]:
        path = folder / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    metrics, config = folder / "metrics.jsonl", folder / "config.toml"
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    records = [json.loads(line) for line in lines]
    settings = read_toml(config) if config.exists() else {}
    eye = {path.stem: json_of(f"eye/{path.name}") for path in sorted(folder.glob("eye/*.json"))}
    return Run(folder.name, json_of("made.json"), settings, records, json_of("results.json"), eye)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _median(run: Run, task: str) -> str:
    """With the range of the seeds, where there are several."""
    scores = [100 * result["score"] for result in run.results.get(task, ())]
    if len(scores) < 2:
        return "".join(f"{score:.1f}" for score in scores)
    return f"{statistics.median(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"


def quarter(runs: dict[str, Run]) -> str:
    """A quarter of the 6.25% row: what the record run is looked for with."""
    header = ["run", "generator loss", "detection AUC", "minutes", *(NAMES[task] for task in FIVE), "mean"]
    lines = []
    for name, run in runs.items():
        if name.startswith("quarter-"):
            held = [f"{run.held['generator_loss']:.2f}", f"{run.held['detection_auc']:.3f}", f"{run.minutes:.1f}"]
            scores = [_median(run, task) for task in FIVE]
            lines.append([run.made["what"], *held, *scores, _cell(run.mean(FIVE))])
    return markdown(header, lines)


def losses(prefix: str, runs: dict[str, Run]) -> str:
    """What is held out at the end, of runs that were not asked to learn tasks."""
    shown = ("generator_loss", "discriminator_loss", "detection_auc")
    found = [run for name, run in runs.items() if name.startswith(prefix)]
    lines = [[run.made["what"], *(f"{run.held[name]:.3f}" for name in shown)] for run in found]
    return markdown(["run", "generator loss", "discriminator loss", "detection AUC"], lines)


def dropout(runs: dict[str, Run]) -> str:
    """One network that never met dropout, asked to learn tasks with it and without."""
    found = [run for name, run in runs.items() if name.startswith("dropout-")]
    tasks = [task for task in SIX if any(task in run.results for run in found)]
    lines = [[run.made["what"], *(_median(run, task) for task in tasks)] for run in found]
    return markdown(["", *(NAMES[task] for task in tasks)], lines)


def speedrun(runs: dict[str, Run]) -> str:
    """The whole runs, and what was published of the full schedule."""
    header = ["run", "tokens", "FLOPs", "minutes", *(NAMES[task] for task in SIX), "mean", "SQuAD 1.1, exact"]
    lines = []
    for name, run in runs.items():
        if name.startswith("speedrun-"):
            tokens, flops = (run.done * run.facts[fact] for fact in ("tokens", "flops"))
            spent = [f"{tokens / 1e9:.2f}e9", f"{flops:.2g}", f"{run.minutes:.1f}"]
            *scores, answers = (_median(run, task) for task in (*SIX, "squad"))
            lines.append([run.made["what"], *spent, *scores, _cell(run.mean(SIX)), answers])
    theirs = [[name, "16.38e9", "1.4e+18", "", *scores, ""] for name, *scores in _published()]
    return markdown(header, [*lines, *theirs])


def first(runs: dict[str, Run]) -> str:
    """The first table of README.md: what can be had in minutes, beside what was published of days."""
    header = ["", "GPU time", "tokens", *(NAMES[task] for task in SIX), "mean"]
    run = runs["speedrun-record"]
    ours = [_cell(run.score(task)) for task in SIX]
    took = f"{run.minutes:.1f} minutes of one H200"
    lines = [["Elektron, the record run", took, f"{run.facts['tokens'] / 1e9:.1f}e9", *ours, _cell(run.mean(SIX))]]
    days = ("4 days of one V100", "4 to 5 days of one V100")
    lines += [[name, spent, "16.4e9", *scores] for spent, (name, *scores) in zip(days, _published(), strict=True)]
    return markdown(header, lines)


def _published() -> list[list[str]]:
    """What others say of the full schedule on OpenWebText, and the mean."""
    found = {"Google's (its README)": PUBLISHED["Small, OWT"], "electra_pytorch (its README)": ELECTRA_PYTORCH}
    return [
        [name, *(_cell(of[task]) for task in SIX), _cell(statistics.fmean(of[task] for task in SIX))]
        for name, of in found.items()
    ]


def rates(runs: dict[str, Run]) -> str:
    """What each objective makes of each learning rate; the first loss is that of naming words."""
    header = ["objective", "learning rate", "naming loss", "discriminator loss", "detection AUC"]
    lines = []
    for name, run in runs.items():
        if name.startswith("rates-"):
            named = [run.held[loss] for loss in ("encoder_loss", "generator_loss") if loss in run.held]
            judged = [run.held.get(loss) for loss in ("discriminator_loss", "detection_auc")]
            losses = ["" if loss is None else f"{loss:.3f}" for loss in (named[0], *judged)]
            scores = [*(_median(run, task) for task in FIVE), _cell(run.mean(FIVE))]
            lines.append((run.config["objective"]["kind"], run.config["schedule"]["learning_rate"], *losses, *scores))
    rows = [[kind, f"{rate:g}", *others] for kind, rate, *others in sorted(lines)]
    return markdown([*header, *(NAMES[task] for task in FIVE), "mean"], rows)


def compared(prefix: str, runs: dict[str, Run]) -> str:
    """Runs of the same budget: the mean over their seeds of what tasks come to, and the standard deviation."""
    header = ["run", "seeds", "tokens", "FLOPs", "minutes", *(NAMES[task] for task in FIVE), "mean"]
    lines = []
    for name, of in _groups(prefix, runs).items():
        facts, minutes = of[0].facts, statistics.fmean(run.minutes for run in of)
        spent = [str(len(of)), f"{facts['tokens'] / 1e6:,.0f}e6", f"{facts['flops']:.3g}", f"{minutes:.1f}"]
        scores = [_spread([run.score(task) for run in of]) for task in FIVE]
        lines.append([name, *spent, *scores, _spread([run.mean(FIVE) for run in of])])
    return markdown(header, lines)


def _groups(prefix: str, runs: dict[str, Run]) -> dict[str, list[Run]]:
    """Those that differ in their seed alone, under what they are called behind the prefix."""
    groups: dict[str, list[Run]] = {}
    for name, run in runs.items():
        if name.startswith(prefix):
            groups.setdefault(name.removeprefix(prefix).partition("-seed-")[0], []).append(run)
    return groups


def _spread(scores: Sequence[float | None]) -> str:
    known = [score for score in scores if score is not None]
    if len(known) < 2:
        return "".join(f"{score:.1f}" for score in known)
    return f"{statistics.fmean(known):.1f} ± {statistics.stdev(known):.1f}"


def eye(runs: dict[str, Run]) -> str:
    """What models see by themselves, a column each."""
    seeing = {name: run for name, run in runs.items() if run.eye}
    rows: dict[str, list[str]] = {}
    for number, run in enumerate(seeing.values()):
        for name, value in _seen(run.eye).items():
            rows.setdefault(name, [""] * len(seeing))[number] = value
    lines = [[name, *values] for name, values in rows.items()]
    return markdown(["percent", *(run.made["what"] for run in seeing.values())], lines)


def _seen(eye: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, how in (("blimp-plain", "as it is"), ("blimp", "as calibrated")):
        if name in eye:
            found[f"BLiMP, {how}"] = _within(eye[name]["accuracy"], eye[name]["interval"])
    if "blimp" in eye:
        found |= {f"- {name.replace('_', ' ')}": _share(value) for name, value in eye["blimp"]["phenomena"].items()}
    if "fce" in eye:
        test, intervals = eye["fce"]["found"]["test"], eye["fce"]["intervals"]
        for name in ("F0.5", "average precision"):
            found[f"FCE, {name}"] = _within(test["calibrated"][name], intervals[name])
        for how, values in test.items():
            found[f"FCE, calibration error, {how}"] = _share(values["calibration error"])
    if "ged" in eye:
        scores = [result["score"] for result in eye["ged"]["ged"]]
        found["FCE learned, F0.5"] = _within(statistics.median(scores), (min(scores), max(scores)))
    if "asr" in eye:
        words, errors = eye["asr"]["words"], eye["asr"]["errors"]
        found |= {f"LibriSpeech, word errors, {name}": f"{100 * count / words:.2f}" for name, count in errors.items()}
    return found


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def _within(value: float, bounds: Sequence[float]) -> str:
    return f"{_share(value)} ({_share(bounds[0])} to {_share(bounds[1])})"


TABLES: dict[str, Callable[[dict[str, Run]], str]] = {
    "quarter": quarter,
    "eighth": partial(losses, "eighth-"),
    "quirks": partial(losses, "quirks-"),
    "dropout": dropout,
    "rates": rates,
    "speedrun": speedrun,
    "first": first,
    "against": partial(compared, "against-"),
    "ladder": partial(compared, "ladder-"),
    "eye": eye,
}


def written(page: str, runs: dict[str, Run]) -> str:
    """The page with its tables made anew."""
    return PLACE.sub(lambda match: f"{match[1]}{match[2]}{TABLES[match[1]](runs)}", page)


def curves(name: str, runs: dict[str, Run]) -> str:
    """Drawn of a family of runs; nothing where there is none."""
    groups = _groups(f"{name}-", runs)
    named = {
        of[0].made["what"] if len(of) == 1 else called: [run.records for run in of] for called, of in groups.items()
    }
    return drawing(f"Losses of training over tokens: {', '.join(named)}", named) if named else ""


def contents(runs: dict[str, Run]) -> dict[Path, str]:
    """Of all files that are made from the runs."""
    made = {page: written(page.read_text(encoding="utf-8"), runs) for page in PAGES}
    drawn = {ROOT / "docs" / "experiments" / f"{name}.svg": curves(name, runs) for name in DRAWN}
    return made | {path: drawing for path, drawing in drawn.items() if drawing}


def main(flags: list[str]) -> int:
    made = contents(read_runs())
    other = [path for path, content in made.items() if _text(path) != content]
    if "--check" in flags:
        for path in other:
            print(f"not as it would be written: {path.relative_to(ROOT)}", file=sys.stderr)
        return 1 if other else 0
    for path in other:
        path.write_text(made[path], encoding="utf-8")
    return 0


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
