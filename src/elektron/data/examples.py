"""Examples of a task: rows of tokens with what is to be said of each, kept on the device that learns from them.

Batches are of rows of about one length, so that little of them is padding. Which rows, is a function of counters as in
data/batches.py: rows come from an endless sequence of shuffled epochs, a window of batches at a time; within a window
they are sorted by length and cut into batches, and these are shuffled.

Shapes in comments: n examples, S tokens of all of them, B rows of a batch, T tokens of a row.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elektron.data.batches import endless, permute
from elektron.data.tokenizer import Specials
from elektron.kernels.counters import fold

IGNORED = -100
"""The class of tokens that have none."""
_STEPS_AN_OCTAVE = 8
_SHORTEST_STEP = 16
_ROWS, _BATCHES = 1, 2


class Row(NamedTuple):
    """An example."""

    tokens: np.ndarray  # [T] with [CLS] and [SEP]
    second: int  # where the second segment begins; T if there is none
    target: np.ndarray  # [] a class or a value, [T] a class of each token, or [2] the first and last token of a span


class Inputs(NamedTuple):
    """A batch, padded."""

    tokens: Tensor  # [B, T]
    segments: Tensor  # [B, T]
    mask: Tensor  # [B, T] true where there is a token
    targets: Tensor  # [B], [B, T] or [B, 2]


def laid_out(specials: Specials, first: np.ndarray, second: np.ndarray | None, longest: int) -> tuple[np.ndarray, int]:
    """`[CLS] first [SEP] second [SEP]`, and where the second segment begins. What is too long for `longest` tokens
    loses tokens at the end, the longer part first."""
    room = longest - (2 if second is None else 3)
    if second is None:
        tokens = np.concatenate([[specials.cls], first[:room], [specials.sep]])
        return tokens, len(tokens)
    kept = max(room - len(second), min(len(first), (room + 1) // 2))
    first = first[:kept]
    second = second[: room - len(first)]
    tokens = np.concatenate([[specials.cls], first, [specials.sep], second, [specials.sep]])
    return tokens, len(first) + 2


class Examples:
    """Rows on a device. `are_tagged` says that each token has a target of its own."""

    def __init__(self, rows: Sequence[Row], specials: Specials, device: torch.device, are_tagged: bool = False) -> None:
        self.lengths = np.array([len(row.tokens) for row in rows])
        self._pad, self._are_tagged = specials.pad, are_tagged
        targets = [np.asarray(row.target) for row in rows]
        self._starts = torch.from_numpy(np.cumsum([0, *self.lengths])[:-1]).to(device)  # [n]
        self._lengths = torch.from_numpy(self.lengths).to(device)
        self._seconds = torch.tensor([row.second for row in rows], device=device)
        self._tokens = torch.from_numpy(np.concatenate([row.tokens for row in rows]).astype(np.int64)).to(device)  # [S]
        self._targets = torch.from_numpy(np.concatenate(targets) if are_tagged else np.stack(targets)).to(device)

    def __len__(self) -> int:
        return len(self.lengths)

    def inputs(self, rows: Tensor, length: int) -> Inputs:
        """The examples numbered `rows` [B], in `length` columns."""
        columns = torch.arange(length, device=rows.device)
        mask = columns < self._lengths[rows, None]
        where = (self._starts[rows, None] + columns).clamp(max=len(self._tokens) - 1)
        tokens = torch.where(mask, self._tokens[where], self._pad)
        segments = ((columns >= self._seconds[rows, None]) & mask).long()
        targets = torch.where(mask, self._targets[where], IGNORED) if self._are_tagged else self._targets[rows]
        return Inputs(tokens, segments, mask, targets)


def batches(lengths: np.ndarray, size: int, steps: int, window: int, key: Tensor) -> Iterator[np.ndarray]:
    """The numbers of the examples of each of `steps` batches: [size]. So many batches are sorted by length together, if
    an epoch has as many; with a `window` of 1, rows come as they were shuffled."""
    together = min(window, max(1, len(lengths) // size))
    for window, first in enumerate(range(0, steps, together)):
        count = min(together, steps - first)
        numbers = first * size + np.arange(count * size)
        rows = endless(numbers, len(lengths), fold(key, _ROWS))
        cut = rows[np.argsort(lengths[rows], kind="stable")].reshape(count, size)
        yield from cut[permute(np.arange(count), count, fold(fold(key, _BATCHES), window))]


def in_order(lengths: np.ndarray, tokens: int) -> Iterator[np.ndarray]:
    """All examples once, longest first, as many at a time as have `tokens` tokens with their padding."""
    rows = np.argsort(-lengths, kind="stable")
    while len(rows):
        count = max(1, tokens // int(lengths[rows[0]]))
        yield rows[:count]
        rows = rows[count:]


def rounded(length: int, longest: int) -> int:
    """The next of eight lengths an octave, in steps of 16 at the least, or the `longest`: few enough to record a graph
    for each. A GPU takes as long for short rows as for those a step longer, and a recording as long as 70 updates."""
    step = max(_SHORTEST_STEP, 1 << max(0, (length - 1).bit_length() - 1) >> _STEPS_AN_OCTAVE.bit_length() - 1)
    return min(-(-length // step) * step, longest)
