"""What ends a run before its last step, on all ranks at the same one."""

import math
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch import Tensor

from elektron.train.distributed import World

OUT_OF_TIME = 75
"""The exit code of a run that its deadline ended: EX_TEMPFAIL, come again."""
_LAG = 4
"""Steps after which the ranks of GPUs hear of an end."""


class Ends:
    """What may end a run before its last step: a signal to any rank, or the first rank's clock."""

    def __init__(self, world: World, deadline: float) -> None:
        self._world = world
        self._under_way: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        self._last_moment = time.monotonic() + deadline if deadline and world.is_first else math.inf
        self._caught: list[int] = []
        self.code = 0
        """0; once all ranks have heard of an end, 128 plus the signal, or OUT_OF_TIME."""

    def ask(self, place: Tensor) -> None:
        """Before an update, which sums over ranks what stands in `place`."""
        if self._world.is_joined:
            for slot, is_so in zip(place.unbind(), self._reasons(), strict=True):
                slot.fill_(float(is_so))

    def answer(self, place: Tensor) -> None:
        """After it."""
        is_caught, is_late = self._heard(place) if self._world.is_joined else self._reasons()
        if is_caught:
            self.code = 128 + (self._caught[0] if self._caught else signal.SIGTERM)
        elif is_late:
            self.code = OUT_OF_TIME

    def _reasons(self) -> tuple[bool, bool]:
        """Why this rank would end the run."""
        return bool(self._caught), time.monotonic() >= self._last_moment

    def _heard(self, place: Tensor) -> tuple[bool, bool]:
        """Why any rank would. A GPU's ranks hear it some steps later, so that the host need not wait for the device."""
        self._under_way.append(_copied(place))
        if len(self._under_way) <= (_LAG if place.is_cuda else 0):
            return False, False
        numbers, event = self._under_way.popleft()
        if event is not None:
            event.synchronize()
        is_caught, is_late = (numbers > 0).tolist()
        return is_caught, is_late

    @contextmanager
    def listening(self) -> Iterator[None]:
        """SIGTERM and SIGINT are noted and heard after the step; a second one is not waited for, unless it may come
        from torchrun, which sends on what the ranks have got themselves."""

        def note(number: int, frame: FrameType | None) -> None:
            if self._caught and not self._world.is_joined:
                raise KeyboardInterrupt
            self._caught.append(number)

        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _copied(place: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """What will stand there, on the host, and the moment when it does."""
    if not place.is_cuda:
        return place.clone(), None
    numbers = torch.empty(place.shape, dtype=place.dtype, pin_memory=True)
    numbers.copy_(place, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return numbers, event
