"""What the discriminator says about words, which are what people read."""

from collections.abc import Iterable, Sequence
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
    own belongs to the word before. A word of several tokens is as suspicious as its worst, or as its first."""
    text, (_, offsets, words), logits, of_firsts = reading
    if not len(words):
        return []
    firsts = firsts_of(reading)
    lasts = np.append(firsts[1:], len(words))
    heard = logits[firsts] if of_firsts else np.maximum.reduceat(logits, firsts)
    replaced = calibration.probabilities(heard.astype(np.float64))
    starts, stops = np.minimum.reduceat(offsets[:, 0], firsts), np.maximum.reduceat(offsets[:, 1], firsts)
    columns = [part.tolist() for part in (starts, stops, replaced, firsts, lasts)]
    if (starts < stops).all() and (starts[1:] >= stops[:-1]).all() and not _touch_space(text, *columns[:2]):
        return list(map(Word._make, zip(*columns, strict=True)))
    return _apart(text, map(Word._make, zip(*columns, strict=True)), of_firsts)


def firsts_of(reading: Reading) -> np.ndarray:
    """The first tokens of words."""
    words = reading.pieces.words
    is_first = np.ones(len(words), dtype=bool)
    is_first[1:] = (words[1:] != words[:-1]) | (words[1:] < 0)
    return np.flatnonzero(is_first)


def _apart(text: str, words: Iterable[Word], of_firsts: bool) -> list[Word]:
    """Without overlap and white space; what is left with no characters joins the word before."""
    found: list[Word] = []
    end = 0
    for word in words:
        start, stop = _trimmed(text, max(word.start, end), word.stop)
        if start < stop:
            found.append(word._replace(start=start, stop=stop))
            end = stop
        elif found:
            heard = found[-1].replaced if of_firsts else max(found[-1].replaced, word.replaced)
            found[-1] = found[-1]._replace(replaced=heard, last=word.last)
    return found


def _touch_space(text: str, starts: list[int], stops: list[int]) -> bool:
    return any(text[start].isspace() or text[stop - 1].isspace() for start, stop in zip(starts, stops, strict=True))


def logits_of(reading: Reading, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Of stretches of characters [n], from left to right: the worst of the tokens that have some of them, or the first;
    minus infinity where none has."""
    found = np.full(len(spans), -np.inf)
    token, count = 0, len(reading.said)
    for number, (start, stop) in enumerate(spans):
        while token < count and reading.pieces.offsets[token, 1] <= start:
            token += 1
        last = token
        while last < count and reading.pieces.offsets[last, 0] < stop and not (reading.of_firsts and last > token):
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
