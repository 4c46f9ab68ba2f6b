"""What the discriminator says about words, which are what people read."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from elektron.score.calibration import Calibration
from elektron.score.reader import Reading

_UNCALIBRATED = Calibration()


class Word(NamedTuple):
    """Characters of a text, and how likely they were replaced."""

    start: int
    stop: int
    replaced: float
    """A probability."""
    first: int
    """Its first token."""
    last: int
    """The one after its last."""


def words_of(reading: Reading, calibration: Calibration = _UNCALIBRATED) -> list[Word]:
    """The words of a text, from left to right, without white space and without overlap: what has no characters of its
    own belongs to the word before. A word of several tokens is as suspicious as its worst."""
    text, (_, offsets, words), logits = reading  # of "replaced"
    if not len(words):
        return []
    is_first = np.concatenate([[True], (words[1:] != words[:-1]) | (words[1:] < 0)])
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(words))
    worst = calibration.probabilities(np.maximum.reduceat(logits, firsts).astype(np.float64))
    starts, stops = np.minimum.reduceat(offsets[:, 0], firsts), np.maximum.reduceat(offsets[:, 1], firsts)
    found: list[Word] = []
    end = 0
    for start, stop, replaced, first, last in zip(
        *(part.tolist() for part in (starts, stops, worst, firsts, lasts)), strict=True
    ):
        start, stop = _trimmed(text, max(start, end), stop)
        if start < stop:
            found.append(Word(start, stop, replaced, first, last))
            end = stop
        elif found:
            found[-1] = found[-1]._replace(replaced=max(found[-1].replaced, replaced), last=last)
    return found


def logits_of(reading: Reading, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Of stretches of characters [n], from left to right: the worst of the tokens that have some of them; minus
    infinity where none has."""
    found = np.full(len(spans), -np.inf)
    token, count = 0, len(reading.said)
    for number, (start, stop) in enumerate(spans):
        while token < count and reading.pieces.offsets[token, 1] <= start:
            token += 1
        last = token
        while last < count and reading.pieces.offsets[last, 0] < stop:
            found[number] = max(found[number], reading.said[last])
            last += 1
    return found


def _trimmed(text: str, start: int, stop: int) -> tuple[int, int]:
    """Without white space at the ends, which some tokenizers count as of the word."""
    while start < stop and text[start].isspace():
        start += 1
    while start < stop and text[stop - 1].isspace():
        stop -= 1
    return start, stop
