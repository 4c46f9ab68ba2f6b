"""One update: micro-batches forward and backward, then clip and step. On a GPU it is recorded once and replayed."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.kernels.counters import row_keys
from elektron.kernels.gpu import rejoin
from elektron.train.optimizer import Optimizer
from elektron.train.sharded import ShardedOptimizer

AnyOptimizer = Optimizer | ShardedOptimizer

Batch = tuple[Tensor, ...]
"""Tensors with a line for each row. The last one has the rows' places in the global batch, which make their noise."""


class Outcome(Protocol):
    """What a forward pass finds."""

    @property
    def loss(self) -> Tensor: ...

    @property
    def tallies(self) -> Tensor:
        """Sums over the batch, float64."""
        ...


Forward = Callable[..., Outcome]
"""Of a batch's tensors, with keys in place of the last, and the number of the step."""


def update(
    forward: Forward,
    optimizer: AnyOptimizer,
    seed: int,
    accumulate: int,
    batch: Batch,
    step: Tensor,
    learning_rate: float | Tensor,
    share: float = 1.0,
) -> Tensor:
    """Learn from a batch, in `accumulate` parts of equal size; where other ranks learn from others, it is so much of
    the `share`. What comes back, on the device: this batch's tallies, then the norm of the gradients and whether the
    update was skipped, which makes zeros of all the others."""
    tallies = _differentiate(forward, optimizer, seed, accumulate, batch, step, share)
    norm, is_skipped = optimizer.update(learning_rate)
    found = torch.cat([tallies, norm.double()[None]])
    if is_skipped is None:
        return F.pad(found, (0, 1))
    return torch.cat([found.masked_fill(is_skipped, 0.0), is_skipped.double()[None]])


def _differentiate(
    forward: Forward, optimizer: AnyOptimizer, seed: int, accumulate: int, batch: Batch, step: Tensor, share: float
) -> Tensor:
    """The gradients of a batch. Its rows have the same number of masked and of all tokens each, so the mean of its
    parts' losses is the batch's loss, and the mean of the ranks' that of the global batch."""
    optimizer.zero()
    tallies = []
    for number, (*inputs, rows) in enumerate(zip(*(tensor.chunk(accumulate) for tensor in batch), strict=True)):
        outcome = forward(*inputs, row_keys(seed, step, rows), step)
        optimizer.backward(outcome.loss * (share / accumulate), is_last=number == accumulate - 1)
        tallies.append(outcome.tallies)
    rejoin(batch[-1].device)
    optimizer.gather()
    return tallies[0] if accumulate == 1 else torch.stack(tallies).sum(0)


class _Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    batch: Batch
    step: Tensor
    learning_rate: Tensor
    tallies: Tensor


class Updates:
    """`update`, step after step, with batches from the host.

    A GPU is done with a small model's kernel before the host has asked for the next one. So the whole update is
    recorded as a CUDA graph, once for each shape of batch, and replayed: the host hands over rows and says go.

    Several of them may run side by side, each on a stream of its own. The matrix library has one workspace for a
    stream, so a graph is recorded on the stream it is replayed on, and while nothing else runs. Those that never run
    at once may share a `pool` of memory.
    """

    def __init__(
        self,
        forward: Forward,
        optimizer: AnyOptimizer,
        seed: int,
        accumulate: int,
        device: torch.device,
        pool: Any = None,  # noqa: ANN401  torch's handle has no public type
    ) -> None:
        self._device, self._pool = device, pool
        self._parts = forward, optimizer, seed, accumulate
        self._records = device.type == "cuda" and optimizer.is_recordable
        self._recorded: dict[torch.Size, _Recorded] = {}

    def __call__(self, batch: Batch, step: int, learning_rate: float, share: float = 1.0) -> Tensor:
        """What `update` says of step number `step`; the next may write over it. Batches of one shape have one share."""
        if not self._records:
            batch = tuple(tensor.to(self._device) for tensor in batch)
            counter = torch.tensor(step, dtype=torch.int32, device=self._device)
            return update(*self._parts, batch, counter, learning_rate, share)
        shape = batch[0].shape
        if shape not in self._recorded:
            self._recorded[shape] = self._record(batch, share)
        recorded = self._recorded[shape]
        for ours, given in zip(recorded.batch, batch, strict=True):
            ours.copy_(given, non_blocking=True)
        recorded.step.fill_(step)
        recorded.learning_rate.fill_(learning_rate)
        recorded.graph.replay()
        return recorded.tallies

    def _record(self, batch: Batch, share: float) -> _Recorded:
        batch = tuple(tensor.to(self._device) for tensor in batch)
        step = torch.zeros((), dtype=torch.int32, device=self._device)
        learning_rate = torch.zeros((), device=self._device)
        torch.cuda.synchronize(self._device)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            _differentiate(
                *self._parts, batch, step, share
            )  # compilers and libraries prepare themselves; nothing is learned
        torch.cuda.current_stream().wait_stream(aside)
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        is_default = here == torch.cuda.default_stream()
        with torch.cuda.graph(
            *(graph, self._pool, None if is_default else here),  # the default stream cannot be recorded
            capture_error_mode="thread_local",  # the thread that watches over NCCL may ask the device what it likes
        ):
            tallies = update(*self._parts, batch, step, learning_rate, share)
        return _Recorded(graph, batch, step, learning_rate, tallies)
