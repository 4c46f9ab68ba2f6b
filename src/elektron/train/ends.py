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
"""Steps after which a GPU's ranks hear of a note, so that the host need not wait for the device."""


class Ends:
    """What may end a run before its last step: a signal to any rank, or the first rank's clock."""

    def __init__(self, world: World, deadline: float) -> None:
        self._world, self._notes = world, Notes(world)
        self._last_moment = time.monotonic() + deadline if deadline and world.is_first else math.inf
        self._caught: list[int] = []
        self.code = 0
        """0; once all ranks have heard of an end, 128 plus the signal, or OUT_OF_TIME."""

    def ask(self, place: Tensor) -> None:
        """Before an update."""
        self._notes.say((float(bool(self._caught)), float(time.monotonic() >= self._last_moment)), place)

    def answer(self, place: Tensor) -> None:
        """After it."""
        caught, late = self._notes.hear(place)
        if caught:
            self.code = 128 + (self._caught[0] if self._caught else signal.SIGTERM)
        elif late:
            self.code = OUT_OF_TIME

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


class Notes:
    """A few numbers that any rank may set, whose sums all ranks hear at the same step. They travel with the gradients:
    one message less, and nobody waits."""

    def __init__(self, world: World) -> None:
        self._is_joined = world.is_joined
        self._under_way: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()

    def say(self, numbers: tuple[float, ...], place: Tensor) -> None:
        """Before an update, into the `place` that it sums."""
        if self._is_joined:
            for slot, number in zip(place.unbind(), numbers, strict=True):
                slot.fill_(number)
        else:
            self._under_way.append((torch.tensor(numbers), None))

    def hear(self, place: Tensor) -> list[float]:
        """After it: the sums of this update or, on a GPU, of one some steps ago."""
        if self._is_joined:
            self._under_way.append(_copied(place))
        if place.is_cuda and self._is_joined and len(self._under_way) <= _LAG:
            return [0.0] * len(place)
        numbers, event = self._under_way.popleft()
        if event is not None:
            event.synchronize()
        return numbers.tolist()


def _copied(place: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """What will stand there, on the host, and the moment when it does."""
    if not place.is_cuda:
        return place.clone(), None
    numbers = torch.empty(place.shape, dtype=place.dtype, pin_memory=True)
    numbers.copy_(place, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return numbers, event
