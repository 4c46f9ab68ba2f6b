"""One update: micro-batches forward and backward, then clip and step. On a GPU it is recorded once and replayed."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from elektron.kernels.counters import row_keys
from elektron.kernels.gpu import rejoin
from elektron.train.optimizer import Optimizer

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
    optimizer: Optimizer,
    seed: int,
    accumulate: int,
    batch: Batch,
    step: Tensor,
    learning_rate: float | Tensor,
) -> Tensor:
    """Learn from a batch, in `accumulate` parts of equal size. The tallies of the whole batch and the norm of the
    gradients come back, on the device."""
    tallies = _differentiate(forward, optimizer, seed, accumulate, batch, step)
    return torch.cat([tallies, optimizer.update(learning_rate).double()[None]])


def _differentiate(
    forward: Forward, optimizer: Optimizer, seed: int, accumulate: int, batch: Batch, step: Tensor
) -> Tensor:
    """The gradients of a batch. Its parts have the same number of masked and of all tokens each, so the mean of their
    losses is the batch's loss."""
    optimizer.zero()
    tallies = []
    for *inputs, rows in zip(*(tensor.chunk(accumulate) for tensor in batch), strict=True):
        outcome = forward(*inputs, row_keys(seed, step, rows), step)
        (outcome.loss / accumulate).backward()
        tallies.append(outcome.tallies)
    rejoin(batch[-1].device)
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
        optimizer: Optimizer,
        seed: int,
        accumulate: int,
        device: torch.device,
        pool: Any = None,  # noqa: ANN401  torch's handle has no public type
    ) -> None:
        self._device, self._pool = device, pool
        self._parts = forward, optimizer, seed, accumulate
        self._recorded: dict[torch.Size, _Recorded] = {}

    def __call__(self, batch: Batch, step: int, learning_rate: float) -> Tensor:
        """The tallies of step number `step`; they may be overwritten by the next."""
        if self._device.type != "cuda":
            return update(*self._parts, batch, torch.tensor(step, dtype=torch.int32), learning_rate)
        shape = batch[0].shape
        if shape not in self._recorded:
            self._recorded[shape] = self._record(batch)
        recorded = self._recorded[shape]
        for ours, given in zip(recorded.batch, batch, strict=True):
            ours.copy_(given, non_blocking=True)
        recorded.step.fill_(step)
        recorded.learning_rate.fill_(learning_rate)
        recorded.graph.replay()
        return recorded.tallies

    def _record(self, batch: Batch) -> _Recorded:
        batch = tuple(tensor.to(self._device) for tensor in batch)
        step = torch.zeros((), dtype=torch.int32, device=self._device)
        learning_rate = torch.zeros((), device=self._device)
        torch.cuda.synchronize(self._device)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            _differentiate(*self._parts, batch, step)  # compilers and libraries prepare themselves; nothing is learned
        torch.cuda.current_stream().wait_stream(aside)
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        is_default = here == torch.cuda.default_stream()
        with torch.cuda.graph(
            graph, self._pool, stream=None if is_default else here
        ):  # the default stream cannot be recorded
            tallies = update(*self._parts, batch, step, learning_rate)
        return _Recorded(graph, batch, step, learning_rate, tallies)
