"""Texts of any length and number, read by a discriminator: a logit for each token of each text, in order.

A text that is longer than the network's rows goes through windows that overlap by half, and a token is judged where it
has the most context. Some texts are gathered at a time; their windows are sorted by length and run in batches, so that
little of them is padding. What a token gets does not depend on who else is in its batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elektron.data.examples import in_order, rounded
from elektron.data.tokenizer import Pieces, Tokenizer
from elektron.data.windows import owners, windows
from elektron.model.heads import Discriminator

GATHERED = 1 << 18
"""Characters of the texts that are gathered, if not of one alone: enough to find rows of like length, and no more."""
_ENDS = 2
"""[CLS] and [SEP]."""
_TOKENS = {"cpu": 1 << 12, "cuda": 1 << 17}
"""Of a batch."""
_STAND_IN = "\ufffd"
"""What is read where there is half a character, or a byte that is none: one for one, so that places stay."""


class Reading(NamedTuple):
    """A text as it was read."""

    text: str
    pieces: Pieces
    logits: np.ndarray  # [n] float32, positive where a token looks replaced


class Reader:
    """A discriminator and its tokenizer; `length` is that of its rows, at most."""

    def __init__(self, discriminator: Discriminator, tokenizer: Tokenizer, length: int = 0) -> None:
        self._network, self._tokenizer = discriminator.eval(), tokenizer
        self.length = length or discriminator.encoder.config.positions
        self._device = next(discriminator.parameters()).device

    def read(self, texts: Iterable[str], gathered: int = GATHERED) -> Iterator[Reading]:
        """Each text in turn; with `gathered` 0, as soon as it is there."""
        for some in _gathered(texts, gathered):
            yield from self._read(some)

    def _read(self, texts: list[str]) -> Iterator[Reading]:
        split = self._tokenizer.split([_readable(text) for text in texts])
        room = self.length - _ENDS
        parts = [windows(len(pieces.ids), room, room // 2) for pieces in split]
        rows = [pieces.ids[slice(*part)] for pieces, of_text in zip(split, parts, strict=True) for part in of_text]
        logits = iter(self.logits(rows))
        for text, pieces, of_text in zip(texts, split, parts, strict=True):
            found, owner = np.empty(len(pieces.ids), dtype=np.float32), owners(of_text)
            for n, (start, stop) in enumerate(of_text):
                mine = owner[start:stop] == n
                found[start:stop][mine] = next(logits)[mine]
            yield Reading(text, pieces, found)

    @torch.no_grad()
    def logits(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Of rows of tokens, [n] each, no longer than the network's without the special tokens."""
        found: list[np.ndarray] = [np.empty(0, dtype=np.float32)] * len(rows)
        lengths = np.array([len(row) + _ENDS for row in rows])
        for numbers in in_order(lengths, _TOKENS[self._device.type]):
            if lengths[numbers[0]] == _ENDS:
                break  # the longest of the rest has no tokens
            tokens, mask = self._batch([rows[n] for n in numbers])
            logits = self._network(tokens, torch.zeros_like(tokens), mask).float().cpu().numpy()
            for n, of_row in zip(numbers.tolist(), logits, strict=True):
                found[n] = of_row[1 : 1 + len(rows[n])]
        return found

    def _batch(self, rows: list[np.ndarray]) -> tuple[Tensor, Tensor | None]:
        """[B, T] tokens, and where there are some if not everywhere."""
        lengths, specials = np.array([len(row) + _ENDS for row in rows]), self._tokenizer.specials
        longest = int(lengths.max())
        if self._device.type == "cuda":
            longest = rounded(longest, self._network.encoder.config.positions)
        tokens = np.full((len(rows), longest), specials.pad, dtype=np.int64)
        for line, row in zip(tokens, rows, strict=True):
            line[: len(row) + _ENDS] = [specials.cls, *row, specials.sep]
        mask = torch.from_numpy(np.arange(longest) < lengths[:, None])
        return torch.from_numpy(tokens).to(self._device), None if mask.all() else mask.to(self._device)


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
