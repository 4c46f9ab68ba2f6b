"""One thread reads for all, and reads together what came while it was busy."""

import asyncio
import threading

import pytest

from elektron.page.answers import Detect, Suggest, answers, size_of
from elektron.page.batching import Batcher, BusyError


class Slow:
    """Doubles numbers, but waits until it is let go; notes what it was given together."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.may = threading.Event()

    def __call__(self, jobs: list[int]) -> list[int]:
        self.calls.append(jobs)
        self.may.wait(10)
        if -1 in jobs:
            raise ValueError("unlucky")
        return [2 * job for job in jobs]


async def settle(slow: Slow) -> None:
    """Until the first call has begun."""
    while not slow.calls:
        await asyncio.sleep(0.001)


async def run(slow: Slow, jobs: list[int], waiting: int = 100, together: int = 1000) -> list:
    """Ask for the first, and for the others while that one is read."""
    batcher = Batcher(slow, lambda job: job, waiting, together)
    first = asyncio.ensure_future(batcher.ask(jobs[0]))
    await settle(slow)
    others = [asyncio.ensure_future(batcher.ask(job)) for job in jobs[1:]]
    await asyncio.sleep(0.01)
    slow.may.set()
    found = await asyncio.gather(first, *others, return_exceptions=True)
    batcher.close()
    return found


def test_what_waits_is_read_together():
    slow = Slow()
    assert asyncio.run(run(slow, list(range(40)))) == [2 * n for n in range(40)]
    assert slow.calls == [[0], list(range(1, 40))]


def test_not_more_than_is_good_for_the_others():
    slow = Slow()
    assert asyncio.run(run(slow, [1, 6, 6, 50, 6, 3], together=12)) == [2, 12, 12, 100, 12, 6]
    assert slow.calls == [[1], [6, 6], [50], [6, 3]]


def test_one_that_fails_fails_alone():
    found = asyncio.run(run(Slow(), [1, 2, -1, 4]))
    assert isinstance(found[2], ValueError)
    assert [found[0], found[1], found[3]] == [2, 4, 8]


def test_the_queue_has_an_end():
    found = asyncio.run(run(Slow(), list(range(6)), waiting=3))
    assert found[:4] == [0, 2, 4, 6]
    assert all(isinstance(refused, BusyError) for refused in found[4:])


def test_what_nobody_waits_for_is_not_read():
    slow = Slow()

    async def hang_up() -> list:
        batcher = Batcher(slow, lambda job: job, 3, 1000)
        first = asyncio.ensure_future(batcher.ask(1))
        await settle(slow)
        given_up = [asyncio.ensure_future(batcher.ask(job)) for job in (2, 3, 4)]
        await asyncio.sleep(0.01)
        for task in given_up:
            task.cancel()
        await asyncio.sleep(0.01)
        last = asyncio.ensure_future(batcher.ask(5))  # there is room again
        await asyncio.sleep(0.01)
        slow.may.set()
        return [await first, await last]

    assert asyncio.run(hang_up()) == [2, 10]
    assert slow.calls == [[1], [5]]


def test_closed_doors_answer_what_waits_and_take_no_more():
    slow = Slow()

    async def leave() -> None:
        batcher = Batcher(slow, lambda job: job, 3, 1000)
        first = asyncio.ensure_future(batcher.ask(1))
        await settle(slow)
        slow.may.set()
        await asyncio.to_thread(batcher.close)
        assert await first == 2
        with pytest.raises(BusyError):
            await batcher.ask(2)

    asyncio.run(leave())


def test_questions_of_all_kinds_together(detector):
    """Each gets its own answer, the same as alone."""
    questions = [
        Detect("the old cat sees a dog"),
        Suggest("the old cat", (4, 8), 2),
        Detect(""),
        Suggest("a bird", (1,), 3),
        Suggest("a fish hears", (2,), 5),
        Suggest("", (), 1),
    ]
    alone = [answers(detector, [question])[0] for question in questions]
    together = answers(detector, questions)
    assert [told.word.start for told in together[0]] == [0, 4, 8, 12, 17, 19]
    for one, other in zip(alone, together, strict=True):
        assert [told.word[:2] for told in one] == [told.word[:2] for told in other]
        assert [told.word.replaced for told in one] == pytest.approx([told.word.replaced for told in other], abs=1e-5)
        assert [[s.text for s in told.better] for told in one] == [[s.text for s in told.better] for told in other]
    assert [[len(told.better) for told in found] for found in together] == [[0] * 6, [2, 2], [], [], [5], []]
    assert [size_of(question) for question in questions] == [22, 1000, 0, 500, 500, 0]
