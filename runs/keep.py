"""Keep what is worth keeping of a run in docs/experiments/runs, for runs/tables.py.

    python runs/keep.py RUN RESULTS NAME COMMIT "what it is" [EYE]

RUN is a run's folder; RESULTS one that `elektron finetune` wrote or '-'; EYE one that runs/eye.sh wrote. Of the
metrics, some forty records of training are kept and all others; paths are left out of the config. What was stored as
NAME before is gone. RUN may also be the folder of a comparison: each of its runs is kept as NAME-OBJECTIVE-seed-N, with
the results of its last checkpoint and what runs/eye.sh has written to `eye` in its folder.
"""

import datetime
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from elektron.config import overlay, read_toml, to_toml
from elektron.verbs.runs import RunConfig

RUNS = Path(__file__).resolve().parent.parent / "docs" / "experiments" / "runs"
RECORDS = 40


def main(run: str, results: str, name: str, commit: str, what: str, eye: str = "") -> None:
    tuned = None if results == "-" else Path(results)
    if not Path(run, "compare.toml").exists():
        keep(Path(run), tuned, name, commit, what, Path(eye) if eye else None)
    else:
        for one in sorted(Path(run).glob("*/seed-*")):
            tuned = next(iter(sorted(one.glob("finetuned/*"), reverse=True)), None)
            seen = one / "eye"
            keep(one, tuned, f"{name}-{one.parent.name}-{one.name}", commit, what, seen if seen.exists() else None)


def keep(run: Path, tuned: Path | None, name: str, commit: str, what: str, eye: Path | None = None) -> None:
    folder = emptied(name)
    config = overlay(RunConfig(), read_toml(run / "config.toml"), str(run))
    config = replace(config, run=Path("runs", name), data="data", corpus=())
    (folder / "config.toml").write_text(to_toml(config), encoding="utf-8")
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    of_training = [number for number, record in enumerate(records) if record["kind"] == "train"]
    every = max(1, len(of_training) // RECORDS)
    dropped = {number for place, number in enumerate(reversed(of_training)) if place % every}
    kept = (line for number, line in enumerate(lines) if number not in dropped)
    (folder / "metrics.jsonl").write_text("\n".join(kept) + "\n", encoding="utf-8")
    seconds = sum(records[number]["clock"]["seconds"] for number in of_training)
    if tuned is not None:
        shutil.copy(tuned / "results.json", folder / "results.json")
    if eye is not None:
        keep_eye(eye, folder / "eye")
    made = {"what": what, "commit": commit, "training_seconds": round(seconds, 1), "date": str(datetime.date.today())}
    (folder / "made.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def emptied(name: str) -> Path:
    """The folder of a run; nothing of another one that was called the same is left in it."""
    folder = RUNS / name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def keep_eye(eye: Path, folder: Path) -> None:
    """What the model sees by itself, each question in a file; and what it has learned to see, among them."""
    folder.mkdir(exist_ok=True)
    for file in eye.glob("*.json"):
        shutil.copy(file, folder)
    if (eye / "ged" / "results.json").exists():
        shutil.copy(eye / "ged" / "results.json", folder / "ged.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
