"""Many ranks, one run: who takes which rows, how all hear of what one was told, and the sum of their gradients.

torchrun starts a process for each rank. A step's batch, its masks and its samples do not depend on how many there are:
a batch is cut into its parts, each part is dealt out to the ranks, and a rank's loss counts as much as its share of the
rows. Gradients lie in one buffer (train/optimizer.py) and are summed in place, stretch by stretch, each as soon as the
backward pass has left it.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from elektron.kernels.layer import unheard
from elektron.model.encoder import Encoder, Layer
from elektron.objectives.objective import Together, apart

STRETCH_BYTES = 25 << 20
"""Gradients sent at a time, or somewhat more: enough for the network's bandwidth, few enough to begin early."""
_PATIENCE = timedelta(days=7)
"""How long ranks wait for what one of them does alone, such as preparing the corpus. torchrun ends them if it dies."""


@dataclass(frozen=True)
class World:
    """All ranks, seen by one of them."""

    rank: int = 0
    size: int = 1
    host: dist.ProcessGroup | None = None
    """For what hosts say to each other; None for a process that nobody started as a rank."""

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes and speaks."""
        return self.rank == 0

    @property
    def is_joined(self) -> bool:
        return self.host is not None

    def share(self, rows: int, parts: int) -> np.ndarray:
        """The places in a batch of `rows` that are this rank's, part after part."""
        size = rows // parts
        mine = np.arange(self.rank * size // self.size, (self.rank + 1) * size // self.size)
        return (np.arange(parts)[:, None] * size + mine).ravel()

    def told(self, text: str) -> str:
        """What the first rank says, on all of them."""
        if self.host is None:
            return text
        letters = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = torch.tensor(len(letters))
        dist.broadcast(length, 0, self.host)
        letters = letters if self.is_first else torch.zeros(int(length), dtype=torch.uint8)
        dist.broadcast(letters, 0, self.host)
        return letters.numpy().tobytes().decode()

    def sums(self, values: list[float]) -> list[float]:
        """Of what each rank brings, on all of them."""
        total = torch.tensor(values, dtype=torch.float64)
        if self.host is not None:
            dist.all_reduce(total, group=self.host)
        return total.tolist()

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Have all ranks hold what the first one does."""
        if self.is_joined:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def together(self, rows: Tensor) -> Together:
        """The rows of all ranks; gradients come back from all of them."""
        if not self.is_joined:
            return apart(rows)
        counts = self.sums([float(len(rows)) * (rank == self.rank) for rank in range(self.size)])
        first = int(sum(counts[: self.rank]))
        return Together(_Gathered.apply(rows, int(sum(counts)), first), first)  # pyright: ignore[reportArgumentType]

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.host is not None:
            dist.barrier(self.host)


ALONE = World()


def _meet(backend: str) -> None:
    """Find the other ranks. Where torchrun starts ranks again after one has died, the addresses of the dead are still
    in its store: those of each start are kept apart."""
    store, rank, size = next(rendezvous("env://"))
    start = f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} of {size}"
    dist.init_process_group(backend, store=PrefixStore(start, store), rank=rank, world_size=size)


class _Gathered(torch.autograd.Function):
    """The rows of all ranks, as the sum of what each has among zeros: shares need not be equal."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, count: int, first: int) -> Tensor:  # noqa: ANN401
        ctx.ours = slice(first, first + len(rows))
        whole = rows.new_zeros(count, *rows.shape[1:])
        whole[ctx.ours] = rows
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401  # pyright: ignore[reportIncompatibleMethodOverride]
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[ctx.ours], None, None


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """The world that torchrun, or whoever else sets RANK, WORLD_SIZE and MASTER_ADDR, has made this process a part of.
    A rank computes on the GPU whose number is its LOCAL_RANK."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        yield ALONE
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    is_ours = not dist.is_initialized()
    if is_ours:
        _meet("nccl" if device.type == "cuda" else "gloo")
    try:
        host = dist.new_group(backend="gloo", timeout=_PATIENCE)
        assert isinstance(host, dist.ProcessGroup)
        yield World(dist.get_rank(), dist.get_world_size(), host)
    finally:
        if is_ours:
            dist.destroy_process_group()


class Reduction:
    """Sums a buffer of gradients over ranks while the backward pass still runs.

    The matrices of layers are sent in stretches, as soon as all of a stretch are there. Autograd says so of one matrix
    after the other; kernels add to gradients themselves, and say so too (`Setting.told`), as often as a layer was used.
    How often that is, the first pass tells: there, everything is sent in the end. What is no layer's is always sent in
    the end. All ranks send in the same order.
    """

    def __init__(
        self, model: nn.Module, places: dict[str, slice], buffer: Tensor, stretch_bytes: int = STRETCH_BYTES
    ) -> None:
        """`places` is where the gradients of the model's parameters lie in the buffer, by their names."""
        at = {id(parameter): places[name] for name, parameter in model.named_parameters()}
        self._buffer, self._works = buffer, list[dist.Work]()
        self._encoders = [module for module in model.modules() if isinstance(module, Encoder)]
        self._stretches: list[slice] = []
        self._stretch_of: dict[int, int] = {}
        hooked: list[Tensor] = []
        for matrices in _chunks(self._encoders, stretch_bytes // buffer.element_size()):
            stops = [at[id(matrix)] for matrix in matrices]
            self._stretch_of |= {id(matrix): len(self._stretches) for matrix in matrices}
            self._stretches.append(slice(min(s.start for s in stops), max(s.stop for s in stops)))
            hooked += matrices
        self._rest = _between(self._stretches, len(buffer))
        self._expected: list[int] | None = None
        self._is_listening = False
        self._handles = [matrix.register_post_accumulate_grad_hook(self._accumulated) for matrix in hooked]
        for encoder in self._encoders:
            encoder.told = self._told

    def close(self) -> None:
        """Hear no more."""
        for handle in self._handles:
            handle.remove()
        for encoder in self._encoders:
            encoder.told = unheard

    def listen(self) -> None:
        """The next backward pass is the last before the sum."""
        self._heard, self._sent, self._by_kernels = [0] * len(self._stretches), 0, set[int]()
        self._is_listening = True

    def finish(self) -> None:
        """Send what has not been sent, and go on when all of it is summed."""
        for stretch in [*self._stretches[self._sent :], *self._rest]:
            self._send(stretch)
        for work in self._works:
            work.wait()
        self._works.clear()
        self._expected, self._is_listening = self._heard, False

    def _told(self, matrix: Tensor) -> None:
        if self._is_listening and id(matrix) in self._stretch_of:
            self._by_kernels.add(id(matrix))
            self._hear(matrix)

    def _accumulated(self, matrix: Tensor) -> None:
        if self._is_listening and id(matrix) not in self._by_kernels:
            self._hear(matrix)

    def _hear(self, matrix: Tensor) -> None:
        number = self._stretch_of[id(matrix)]
        self._heard[number] += 1
        if self._expected is None:
            return
        assert self._heard[number] <= self._expected[number], "a gradient came after it had been sent"
        while self._sent < len(self._stretches) and self._heard[self._sent] == self._expected[self._sent]:
            self._send(self._stretches[self._sent])
            self._sent += 1

    def _send(self, stretch: slice) -> None:
        work = dist.all_reduce(self._buffer[stretch], async_op=True)
        assert work is not None
        self._works.append(work)


def _chunks(encoders: list[Encoder], count: int) -> Iterator[list[Tensor]]:
    """The matrices of layers, `count` elements or somewhat more at a time, in the order in which gradients come."""
    for encoder in encoders:
        chunk: list[Tensor] = []
        for layer in reversed(encoder.layers):
            assert isinstance(layer, Layer)
            chunk += layer.weights.matrices
            if sum(matrix.numel() for matrix in chunk) >= count:
                yield chunk
                chunk = []
        if chunk:
            yield chunk


def _between(stretches: list[slice], end: int) -> list[slice]:
    """What is left of a buffer."""
    borders = sorted((stretch.start, stretch.stop) for stretch in stretches)
    starts, stops = [0, *(stop for _, stop in borders)], [*(start for start, _ in borders), end]
    return [slice(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop]
