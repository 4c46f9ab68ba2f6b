"""Metrics are records first: each is a line of metrics.jsonl, and whatever else shows them reads the same record.

    {"kind": "run",    "step": 0, ...facts}                     once, when a run begins
    {"kind": "train",  "step": n, ...metrics, "clock": {...}}   means over the steps since the record before
    {"kind": "held",   "step": n, ...metrics}                   the held-out evaluation
    {"kind": "health", "step": n, "message": ...}               trouble, in words

What depends on the machine's speed is under "clock"; all else is a function of the config. On disk a record ends with a
checksum of itself, "crc32", which `read` takes off again.
"""

import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elektron.data.files import write_atomically
from elektron.train.device import wait

FILE = "metrics.jsonl"
_SUM = "crc32"
Record = dict[str, Any]


class Sink(NamedTuple):
    """Whoever shows records."""

    show: Callable[[Record], object]
    close: Callable[[], object] = lambda: None


class Metrics:
    """Appends records to a run's metrics.jsonl and hands them to whoever shows them."""

    def __init__(self, run: Path | None, step: int, sinks: list[Sink]) -> None:
        """`step` is where the run goes on from: records past it are cut off, so that no step stands twice. Without a
        run, nothing is written: all ranks come to the same records, and the first has them."""
        kept = _kept(run, step) if run else []
        self._file = open(run / FILE, "ab", buffering=0) if run else None  # noqa: SIM115  closed by close()
        self._sinks = sinks
        self.last = {record["kind"]: record for record in kept}
        """The newest record of each kind."""

    def write(self, record: Record) -> None:
        if self._file:
            _append(self._file, _line(record).encode())
        self.last[record["kind"]] = record
        for sink in self._sinks:
            sink.show(record)

    def sync(self) -> None:
        """Make sure that what is written outlives a crash, before a checkpoint says it is there."""
        if self._file:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file:
            self._file.close()
        for sink in self._sinks:
            sink.close()


def _append(file: FileIO, line: bytes) -> None:
    left = memoryview(line)
    try:
        while left:  # a disk that is nearly full takes a part
            left = left[file.write(left) :]
    except OSError as error:
        raise OSError(error.errno, f"cannot write {file.name}: {error.strerror}") from error


def _kept(run: Path, step: int) -> list[Record]:
    """The records up to a step, which are then all there are."""
    kept = [record for record in read(run) if record["step"] <= step] if step and (run / FILE).exists() else []
    write_atomically(run / FILE, "".join(_line(record) for record in kept).encode())
    return kept


def _line(record: Record) -> str:
    return json.dumps(record | {_SUM: _sum(record)}, allow_nan=False) + "\n"


def _sum(record: Record) -> int:
    return zlib.crc32(json.dumps(record).encode())


def read(run: Path) -> list[Record]:
    """A run's records; a last line that a crash cut off does not count."""
    path = run / FILE
    *whole, _ = path.read_bytes().split(b"\n")
    return [_parsed(line, f"{path}, line {number}") for number, line in enumerate(whole, 1)]


def read_begun(run: Path) -> list[Record]:
    """The records of a run that has begun, the facts about it first."""
    records = read(run)
    if not records or records[0]["kind"] != "run":
        raise ValueError(f"{run / FILE}: damaged (it does not begin with the facts of the run)")
    return records


def _parsed(line: bytes, where: str) -> Record:
    try:
        record = json.loads(line)
        if record.pop(_SUM) == _sum(record):
            return record
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise ValueError(f"{where}: damaged; remove the line to go on without it")


class Tally:
    """Sums over the steps since the last record, kept on the device until the next."""

    def __init__(self, names: tuple[str, ...], sums: dict[str, float] | None = None, steps: int = 0) -> None:
        """`sums` and `steps` are what was summed up before."""
        self._names, self.steps = names, steps
        self._sums = torch.tensor([sums[name] for name in names], dtype=torch.float64) if sums else None

    def add(self, sums: Tensor) -> None:
        """One step's, in the order of the names."""
        self._sums = sums.clone() if self._sums is None else self._sums.to(sums.device).add_(sums)
        self.steps += 1

    def read(self) -> dict[str, float]:
        """The sums as numbers; waits for the device."""
        return {} if self._sums is None else dict(zip(self._names, self._sums.tolist(), strict=True))

    def clear(self) -> None:
        self._sums, self.steps = None, 0


class Clock:
    """Speed of training; time in which the loop does something else is not counted."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tokens, self._flops, self._start = 0, 0.0, time.perf_counter()

    def count(self, tokens: int, flops_per_token: float) -> None:
        self._tokens += tokens
        self._flops += tokens * flops_per_token

    @contextmanager
    def stopped(self) -> Iterator[None]:
        wait(self._device)
        before = time.perf_counter()
        yield
        self._start += time.perf_counter() - before

    def lap(self, peak: float | None) -> dict[str, float]:
        """What was done since the last lap, and how fast; `peak` is the device's FLOP/s, if known."""
        wait(self._device)
        seconds = max(1e-9, time.perf_counter() - self._start)  # whatever a clock may do
        speed = {"seconds": seconds, "tokens_per_second": self._tokens / seconds}
        if peak:
            speed["mfu"] = self._flops / seconds / peak
        self._tokens, self._flops, self._start = 0, 0.0, time.perf_counter()
        return speed


def tensorboard(run: Path) -> Sink:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError("--watch.to tensorboard needs `pip install 'elektron[tensorboard]'`") from error
    writer = SummaryWriter(run / "tensorboard")

    def show(record: Record) -> None:
        for name, value in _scalars(record).items():
            writer.add_scalar(name, value, record["step"])

    return Sink(show, writer.close)


def wandb(run: Path) -> Sink:
    try:
        import wandb as library
    except ImportError as error:
        raise ValueError("--watch.to wandb needs `pip install 'elektron[wandb]'`") from error
    place = hashlib.blake2b(str(run.resolve()).encode(), digest_size=8).hexdigest()
    try:
        session = library.init(project="elektron", name=run.name, id=place, dir=run, resume="allow")
    except library.Error as error:
        raise ValueError(f"--watch.to wandb: {error}") from error
    return Sink(lambda record: session.log(_scalars(record) | {"step": record["step"]}), session.finish)


def _scalars(record: Record) -> dict[str, float]:
    """Every number of a record as KIND/NAME."""
    values = record | record.get("clock", {})
    names = [name for name, value in values.items() if isinstance(value, int | float) and name != "step"]
    return {f"{record['kind']}/{name}": values[name] for name in names}


SINKS = {"tensorboard": tensorboard, "wandb": wandb}
