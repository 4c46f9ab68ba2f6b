"""How fast training is, measured: the very update that a run makes, on rows cut from real shards of made-up text.

Three questions are kept apart: how long until the first step is done, how long a step takes when its batch is there,
and how long the device has nothing to do because it is not.
"""

import gc
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from elektron.data import tokenizer
from elektron.data.batches import Batch, Rows, prefetched
from elektron.data.shards import VERSION, Index, open_stream, write_shard
from elektron.data.storage import storage
from elektron.data.tokenizer import ROLES, TokenizerConfig
from elektron.kernels.counters import seed_key
from elektron.objectives.objective import Objective, Outcome
from elektron.train.device import precision, wait
from elektron.train.optimizer import Optimizer, OptimizerConfig
from elektron.train.step import Updates

RATE = 1e-5
"""A learning rate at which no network loses its way in text without sense: what is not a number costs other time."""
_READY = 4
"""Batches that are there beforehand, where the loader is not to be measured."""
_LEAST_WATCHED = 3
"""Steps with the loader, at the least."""
_SEED = 0
_TOKENS, _DOCUMENT = 1 << 22, 500
"""Length of the made-up text and, on average, of a document in it."""


def made_up_rows(folder: Path, vocab_size: int, length: int, size: int) -> Rows:
    """Rows of words without sense, from a shard in `folder` with room for a batch of `size` rows. The n-th word of the
    vocabulary is 1/n times as frequent as the first (Zipf, 1935), as in text: some rows of a table are hot."""
    (folder / "vocab.txt").write_text("\n".join([*ROLES.values(), *(f"w{n}" for n in range(len(ROLES), vocab_size))]))
    words = tokenizer.load(folder / "vocab.txt", TokenizerConfig())
    draw = np.random.default_rng(_SEED)
    count = max(_TOKENS, 2 * size * length)
    tokens = len(ROLES) - 1 + np.exp(draw.random(count) * math.log(vocab_size - len(ROLES) + 1)).astype(np.int64)
    ends = np.append(np.flatnonzero(draw.random(count - 1) < 1 / _DOCUMENT) + 1, count)
    shard = write_shard(storage(folder), "shard-00000.bin", tokens, ends, count, words, bytes(16))
    totals = 0.0, count, 0, len(ends), 0
    index = Index(VERSION, vocab_size, words.hash, words.names, *totals, (shard,))
    return Rows(open_stream(folder, index, "train"), words.specials, length, seed_key(_SEED))


def updates(
    model: Objective, optimizer: OptimizerConfig, seed: int, accumulate: int, recompute: bool, device: torch.device
) -> Updates:
    """A run's update, put together as `elektron pretrain` does."""
    model = model.to(device).train()
    for encoder in model.encoders():
        encoder.recompute = recompute

    def forward(original: Tensor, segments: Tensor, keys: Tensor, step: Tensor) -> Outcome:
        return model(original, segments, keys)

    return Updates(forward, Optimizer(model, optimizer, precision(device)), seed, accumulate, device)


class Update(Protocol):
    """What can be measured: `Updates`, or whatever is to be compared with it."""

    def __call__(self, batch: Batch, step: int, learning_rate: float, /) -> object: ...


@dataclass(frozen=True)
class Speed:
    """How fast updates are."""

    first: float
    """Seconds from nothing to the end of the first step: building, compiling, recording."""
    runs: tuple[float, ...]
    """Seconds a step when its batch is there, one value for each run of `steps` steps."""
    steps: int
    stall: float
    """Share of the time in which the device waits for a batch, when the batches come from the loader."""
    memory: int
    """Bytes of the GPU that were taken at the most; 0 on a CPU."""

    @property
    def seconds(self) -> float:
        """Of a step, in the median run."""
        return statistics.median(self.runs)


def measure(
    begin: Callable[[], Update], rows: Rows, size: int, device: torch.device, repeats: int, seconds: float
) -> Speed:
    """Call `begin` for an update and make it with batches of `size` rows: `repeats` runs of about `seconds` each, and
    no less than one step; then with the loader."""
    ready = [_loaded(rows, size, device, number) for number in range(_READY)]
    numbers = itertools.count()
    _forget(device)
    start = time.perf_counter()
    update = begin()

    def run(steps: int) -> float:
        wait(device)
        start = time.perf_counter()
        for number in itertools.islice(numbers, steps):
            update(ready[number % _READY], number, RATE)
        wait(device)
        return (time.perf_counter() - start) / steps

    run(1)
    first = time.perf_counter() - start
    steps = max(1, round(seconds / min(run(1), run(1))))
    runs = tuple(run(steps) for _ in range(repeats))
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    watched = max(_LEAST_WATCHED, steps)
    with closing(prefetched(lambda n: _loaded(rows, size, device, n), _READY, _READY + 1 + watched)) as batches:
        return Speed(first, runs, steps, _stall(update, batches, device), memory)


def _forget(device: torch.device) -> None:
    """Give back what was measured before."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # compiled code keeps its networks
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _loaded(rows: Rows, size: int, device: torch.device, step: int) -> Batch:
    batch = rows.batch(step, size)
    return Batch(*(tensor.pin_memory() for tensor in batch)) if device.type == "cuda" else batch


def _stall(update: Update, batches: Iterator[Batch], device: torch.device) -> float:
    """Share of the time in which the device waits for a batch.

    The host asks a GPU for steps ahead of time, so its own waiting says nothing. What does is the time between the end
    of a step and the beginning of the next: none where the next was asked for by then.
    """
    update(next(batches), 0, RATE)  # wakes the loader, which is not what a run does at every step
    wait(device)
    moments = _Moments(device)
    for number, batch in enumerate(batches):
        moments.note()
        update(batch, number, RATE)
        moments.note()
    times = moments.read()  # begin, end, begin, end, ...
    return (sum(times[2::2]) - sum(times[1:-1:2])) / times[-1]


class _Moments:
    """Moments in the life of a device: when it has done what it was given until then."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []
        self._times: list[float] = []

    def note(self) -> None:
        if self._device.type == "cuda":
            self._events.append(torch.cuda.Event(enable_timing=True))
            self._events[-1].record()
        else:
            self._times.append(time.perf_counter())

    def read(self) -> list[float]:
        """Seconds since the first."""
        wait(self._device)
        since = [self._events[0].elapsed_time(event) / 1e3 for event in self._events]
        return since or [moment - self._times[0] for moment in self._times]
