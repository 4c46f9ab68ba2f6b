"""Keep what is worth keeping of a run in docs/experiments/runs, for runs/tables.py.

    python runs/keep.py RUN RESULTS NAME COMMIT "what it is"

RUN is a run's folder, RESULTS one that `elektron finetune` wrote or '-'. Of the metrics, some forty records of training
are kept and all others; paths are left out of the config.
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


def main(run: str, results: str, name: str, commit: str, what: str) -> None:
    folder = RUNS / name
    folder.mkdir(parents=True, exist_ok=True)
    config = overlay(RunConfig(), read_toml(Path(run, "config.toml")), run)
    config = replace(config, run=Path("runs", name), data="data", corpus=())
    (folder / "config.toml").write_text(to_toml(config), encoding="utf-8")
    lines = Path(run, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    of_training = [number for number, record in enumerate(records) if record["kind"] == "train"]
    every = max(1, len(of_training) // RECORDS)
    dropped = {number for place, number in enumerate(reversed(of_training)) if place % every}
    kept = (line for number, line in enumerate(lines) if number not in dropped)
    (folder / "metrics.jsonl").write_text("\n".join(kept) + "\n", encoding="utf-8")
    if results != "-":
        shutil.copy(Path(results, "results.json"), folder / "results.json")
    seconds = sum(records[number]["clock"]["seconds"] for number in of_training)
    made = {"what": what, "commit": commit, "date": str(datetime.date.today()), "training_seconds": round(seconds, 1)}
    (folder / "made.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
