"""One thread owns the network. What arrives while it is busy is read together, in one call."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Job = TypeVar("Job")
Answer = TypeVar("Answer")


class BusyError(Exception):
    """More is waiting than may wait."""


class Batcher(Generic[Job, Answer]):
    """`act` answers jobs in one call, each with its own answer. Up to `waiting` jobs wait; those that are done together
    have a size of at most `together`, so that nobody waits for a giant."""

    def __init__(
        self, act: Callable[[list[Job]], list[Answer]], size: Callable[[Job], int], waiting: int, together: int
    ) -> None:
        self._act, self._size, self._most, self._together = act, size, waiting, together
        self._waiting: deque[tuple[Job, Future[Answer]]] = deque()
        self._bell = threading.Condition()
        self._is_open = True
        self._thread = threading.Thread(target=self._work, name="network", daemon=True)
        self._thread.start()

    async def ask(self, job: Job) -> Answer:
        """The answer to one job; a caller that is cancelled takes its job with it, if it is not begun."""
        return await asyncio.wrap_future(self._enter(job))

    def close(self) -> None:
        """What waits is still answered."""
        with self._bell:
            self._is_open = False
            self._bell.notify()
        self._thread.join()

    def _enter(self, job: Job) -> Future[Answer]:
        future: Future[Answer] = Future()
        with self._bell:
            self._waiting = deque(pair for pair in self._waiting if not pair[1].cancelled())
            if len(self._waiting) >= self._most or not self._is_open:
                raise BusyError
            self._waiting.append((job, future))
            self._bell.notify()
        return future

    def _work(self) -> None:
        while some := self._next():
            self._answer([pair for pair in some if pair[1].set_running_or_notify_cancel()])

    def _next(self) -> list[tuple[Job, Future[Answer]]]:
        """All that may be done together; nothing when the doors are closed and nobody waits."""
        with self._bell:
            self._bell.wait_for(lambda: self._waiting or not self._is_open)
            some, size = [], 0
            while self._waiting and (not some or size + self._size(self._waiting[0][0]) <= self._together):
                size += self._size(self._waiting[0][0])
                some.append(self._waiting.popleft())
            return some

    def _answer(self, some: list[tuple[Job, Future[Answer]]]) -> None:
        """If they cannot be answered together, each by itself: one that fails fails alone."""
        if not some:
            return
        try:
            answers = self._act([job for job, _ in some])
        except Exception as error:
            if len(some) == 1:
                some[0][1].set_exception(error)
            for pair in some if len(some) > 1 else ():
                self._answer([pair])
            return
        for (_, future), answer in zip(some, answers, strict=True):
            future.set_result(answer)
