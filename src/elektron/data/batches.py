"""Batches: rows `[CLS] A [SEP] B [SEP]` cut from the stream, as a pure function of counters.

Row i of step s is number r = s * B + i of an endless sequence: epoch r // n, and within it the stream's row
permutation(epoch)[r % n]. Nothing is stored and nothing is drawn, so the loader's state is the step, and any rank of
any world finds its own rows. Shapes in comments: B rows, T tokens of a row.
"""

import contextlib
import math
import queue
import threading
from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elektron.data.shards import Stream
from elektron.data.tokenizer import Specials
from elektron.kernels.counters import elements, fold, unsigned

SPECIALS = 3
"""[CLS] and two [SEP]: what a row holds beside its text."""
SHORTEST = SPECIALS + 2
"""Tokens of a row with something on both sides of the cut."""
_ORDER, _CUT = 1, 2
_ROUNDS = 4
_NEVER = np.iinfo(np.int64).max


class Batch(NamedTuple):
    """Rows of one step."""

    original: Tensor  # [B, T] int64
    segments: Tensor  # [B, T] int64: 0 up to the first [SEP], 1 after it
    rows: Tensor  # [B] int32: places in the global batch


class Rows:
    """The endless sequence of rows of one length, in the order that `key` gives them."""

    def __init__(self, stream: Stream, specials: Specials, length: int, key: Tensor) -> None:
        if length < SHORTEST:
            raise ValueError(f"rows of {length} tokens are too short: the least is {SHORTEST}")
        self._stream, self._specials, self._length = stream, specials, length
        self._text = length - SPECIALS
        self._ends = np.append(stream.ends(stream.tokens + self._text), _NEVER)
        self._order, self._cuts = fold(key, _ORDER), fold(key, _CUT)
        self.count = -(-stream.tokens // self._text)
        """Rows in an epoch: every token is in one, and the last goes on at the beginning of the stream."""

    def batch(self, step: int, size: int, places: np.ndarray | None = None) -> Batch:
        """Of step `step`, whose global batch has `size` rows: those at `places`, or all."""
        places = np.arange(size) if places is None else places
        numbers = step * size + places
        starts = endless(numbers, self.count, self._order) * self._text
        cuts = self._cut(starts, numbers)[:, None]
        columns = np.arange(self._length)
        text = self._stream.read(starts, self._text)
        original = np.take_along_axis(text, np.clip(columns - 1 - (columns > cuts), 0, self._text - 1), axis=1)
        original[:, 0] = self._specials.cls
        original[(columns == cuts + 1) | (columns == self._length - 1)] = self._specials.sep
        segments = (columns > cuts + 1).astype(np.int64)
        return Batch(torch.from_numpy(original), torch.from_numpy(segments), torch.from_numpy(places.astype(np.int32)))

    def _cut(self, starts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """How many tokens of a row are A: up to the document's end nearest the middle (the earlier of two), and where
        no document ends inside, any number that leaves a token on either side."""
        high, low = torch.from_numpy(numbers >> 31), torch.from_numpy(numbers & 0x7FFFFFFF)
        cut = 1 + unsigned(fold(fold(self._cuts, high), low)).numpy() % (self._text - 1)
        after = np.searchsorted(self._ends, starts + self._text // 2, side="right")
        distance = np.full_like(cut, self._text)
        for candidate in (after - 1, after):
            end = self._ends[np.clip(candidate, 0, len(self._ends) - 1)] - starts
            nearer = (end > 0) & (end < self._text) & (np.abs(2 * end - self._text) < distance)
            cut, distance = np.where(nearer, end, cut), np.where(nearer, np.abs(2 * end - self._text), distance)
        return cut


def endless(numbers: np.ndarray, count: int, key: Tensor) -> np.ndarray:
    """Where the numbers of an endless sequence of shuffled epochs lie within their epoch of `count`; they may straddle
    epochs."""
    epochs, places = np.divmod(numbers, count)
    where = np.empty_like(numbers)
    for epoch in np.unique(epochs).tolist():
        where[epochs == epoch] = permute(places[epochs == epoch], count, fold(key, epoch))
    return where


def permute(index: np.ndarray, n: int, key: Tensor) -> np.ndarray:
    """Where a keyed permutation of range(n) sends `index`: a Feistel network on the smallest rectangle of numbers that
    holds n, walked until it lands inside (Black and Rogaway, 2002)."""
    height = math.isqrt(n - 1) + 1 if n > 1 else 1
    width = -(-n // height)
    result = _feistel(torch.from_numpy(index), height, width, key)
    while bool((outside := result >= n).any()):
        result = torch.where(outside, _feistel(result, height, width, key), result)
    return result.numpy()


def _feistel(x: Tensor, height: int, width: int, key: Tensor) -> Tensor:
    left, right = x // width, x % width
    for first, second in elements(key, 2 * _ROUNDS).view(_ROUNDS, 2):
        left = (left + unsigned(fold(first, right))) % height
        right = (right + unsigned(fold(second, left))) % width
    return left * width + right


def prefetched(make: Callable[[int], Batch], start: int, stop: int, depth: int = 4) -> Generator[Batch]:
    """make(start), ..., make(stop - 1), made in a thread ahead of their use. Close it to end the thread."""
    ready: queue.Queue[Batch | BaseException] = queue.Queue(depth)
    wanted = threading.Event()
    wanted.set()

    def work() -> None:
        try:
            for step in range(start, stop):
                if not wanted.is_set():
                    return
                _put(ready, make(step), wanted)
        except BaseException as error:  # handed to the consumer, who raises it
            _put(ready, error, wanted)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        for _ in range(start, stop):
            batch = ready.get()
            if isinstance(batch, BaseException):
                raise batch
            yield batch
    finally:
        wanted.clear()
        worker.join()


def _put(ready: queue.Queue[Batch | BaseException], item: Batch | BaseException, wanted: threading.Event) -> None:
    """Wait for room, but no longer than somebody wants the item."""
    while wanted.is_set():
        with contextlib.suppress(queue.Full):
            ready.put(item, timeout=0.1)
            return
