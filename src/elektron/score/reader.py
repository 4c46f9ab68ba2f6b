"""Texts of any length and number, read by a network: what it says of each token of each text, in order.

A text that is longer than the network's rows goes through windows that overlap by half, and what is said of a token is
said where it has the most context. A short one may be led in: networks that learned from full rows only are all but
blind in short ones, and any ordinary text before them opens their eyes (docs/experiments/detection.md). Some texts are
gathered at a time, so that their rows can be sorted by length. What a token gets does not depend on who else is in its
batch.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from elektron.data.tokenizer import Pieces, Tokenizer
from elektron.data.windows import owners, windows
from elektron.score.rows import ENDS, Row, Say

GATHERED = 1 << 18
"""Characters of the texts that are gathered, if not of one alone: enough to find rows of like length, and no more."""
LEAD = (
    "We were talking about this the other day. He thinks that it is easy, and I think that it is not. You can see it "
    "in many places, and there are several reasons why it happens. Some of them are well known; others have to be "
    "found out. What she told us was new to me."
)
"""For English. That anybody could have written it matters more than what it says."""
_STAND_IN = "\ufffd"
"""What is read where there is half a character, or a byte that is none: one for one, so that places stay."""


class Reading(NamedTuple):
    """A text as it was read."""

    text: str
    pieces: Pieces
    said: np.ndarray  # [n] float32, of each token
    of_firsts: bool = False
    """Whether only what is said of a word's first token counts."""


class Reader:
    """Reads by what is said of rows of up to `length` tokens, [CLS] and [SEP] among them. Where a text leaves room,
    the end of `lead` is put before it. Taggers speak of words by their first tokens alone: `of_firsts`."""

    def __init__(self, say: Say, tokenizer: Tokenizer, length: int, lead: str = "", of_firsts: bool = False) -> None:
        self._say, self._tokenizer, self._room, self._of_firsts = say, tokenizer, length - ENDS, of_firsts
        self.lead = tokenizer.split([_readable(lead)])[0].ids
        if self._room < 1:
            raise ValueError(f"rows of {length} tokens have no room for text: at least {ENDS + 1}")

    def read(self, texts: Iterable[str], gathered: int = GATHERED) -> Iterator[Reading]:
        """Each text in turn; with `gathered` 0, as soon as it is there."""
        for some in _gathered(texts, gathered):
            yield from self._read(some)

    def _read(self, texts: list[str]) -> Iterator[Reading]:
        split = self._tokenizer.split([_readable(text) for text in texts])
        parts = [windows(len(pieces.ids), self._room, max(1, self._room // 2)) for pieces in split]
        rows = [row for pieces, of_text in zip(split, parts, strict=True) for row in self._rows(pieces.ids, of_text)]
        said = iter(self._say(rows))
        for text, pieces, of_text in zip(texts, split, parts, strict=True):
            seen = [next(said) for _ in of_text]
            yield Reading(text, pieces, seen[0] if len(seen) == 1 else _merged(of_text, seen), self._of_firsts)

    def _rows(self, ids: np.ndarray, parts: list[tuple[int, int]]) -> list[Row]:
        room = min(len(self.lead), self._room - len(ids))
        if len(parts) == 1 and len(ids) and room:
            return [Row(np.concatenate([self.lead[len(self.lead) - room :], ids]), room)]
        return [Row(ids[start:stop]) for start, stop in parts]


def _merged(parts: list[tuple[int, int]], seen: list[np.ndarray]) -> np.ndarray:
    """Of each token, what was said in the window where it has the most context."""
    owner = owners(parts)
    found = np.empty(len(owner), dtype=np.float32)
    for n, ((start, stop), of_window) in enumerate(zip(parts, seen, strict=True)):
        mine = owner[start:stop] == n
        found[start:stop][mine] = of_window[mine]
    return found


def _gathered(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    some: list[str] = []
    size = 0
    for text in texts:
        some.append(text)
        size += len(text)
        if size >= characters:
            yield some
            some, size = [], 0
    if some:
        yield some


def _readable(text: str) -> str:
    """The text for a tokenizer, which takes no surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(_STAND_IN if "\ud800" <= character <= "\udfff" else character for character in text)
    return text
