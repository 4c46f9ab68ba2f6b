"""Ranks of torchrun that die: it starts all of them again, and the run ends as if nothing had happened."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from faults.conftest import MODEL, WATCH, contents
from faults.counting import Faults

pytestmark = pytest.mark.distributed

TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 3 -m -- elektron pretrain".split()
PHASES = ["--train.phases", "100", "16", "4"]


def start(data: Path, run: Path) -> subprocess.Popen[str]:
    words = [sys.executable, *TORCHRUN, "--data", data, "--run", run, *MODEL, *WATCH, *PHASES]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [str(word) for word in words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def ranks_of(pid: int) -> Sequence[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in children.split()]


def wait_for_records(run: Path) -> None:
    while not (run / "metrics.jsonl").exists():
        time.sleep(0.01)


def test_a_rank_dies(tmp_path, prepared, faults: Faults):
    """At any moment of training, the first rank or the other; the same bytes as of two that were left alone."""
    run = tmp_path / "run"
    begun = start(prepared, run)
    wait_for_records(run)
    begin = time.monotonic()
    ended(begun)
    seconds, whole = time.monotonic() - begin, contents(run)
    for _ in range(faults.times(1, 10)):
        shutil.rmtree(run)
        with faults.inject("kill -9 of a rank"):
            process = start(prepared, run)
            wait_for_records(run)
            time.sleep(faults.random.uniform(0, 0.6 * seconds))
            os.kill(faults.random.choice(ranks_of(process.pid)), signal.SIGKILL)
            ended(process)
            faults.same(whole, contents(run))
