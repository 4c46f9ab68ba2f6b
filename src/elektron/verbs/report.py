"""elektron report RUN: draw a run's curves and facts as one HTML page that needs nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elektron.config import parse
from elektron.data.files import write_atomically
from elektron.train import metrics
from elektron.train.report import report_page
from elektron.verbs.runs import CONFIG


@dataclass(frozen=True, kw_only=True)
class Config:
    """elektron report"""

    run: Path = Path("runs/tiny")
    """The run: `elektron report RUN`."""


def main(arguments: Sequence[str]) -> None:
    config = parse(Config(), arguments, "elektron report", __doc__ or "", first="run")
    print(write_report(config.run))


def write_report(run: Path) -> Path:
    if not (run / CONFIG).exists() or not (run / metrics.FILE).exists():
        raise ValueError(f"{run} is no run: it needs {CONFIG} and {metrics.FILE}")
    page = report_page(run.resolve().name, metrics.read_begun(run), (run / CONFIG).read_text(encoding="utf-8"))
    write_atomically(run / "report.html", page.encode())
    return run / "report.html"
