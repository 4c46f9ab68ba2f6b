"""What the generator would rather have read: the best words in place of one."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from elektron.data.tokenizer import Tokenizer
from elektron.model.heads import Generator
from elektron.objectives.lexicon import lexicon_of
from elektron.score.reader import Reader, Reading
from elektron.score.rows import ENDS, Row, batches, spoken
from elektron.score.words import Word

_SPELLINGS = 3
"""Of one word that a vocabulary may have: the, The, THE."""


class Suggestion(NamedTuple):
    """A word, and how likely the generator finds it."""

    text: str
    probability: float


class Suggester:
    """A generator and its tokenizer. A word of several tokens gives way to one mask, and what is suggested is a token
    that is a word; in the place of punctuation, other punctuation. Short texts are led in as by a `Reader`."""

    def __init__(self, generator: Generator, tokenizer: Tokenizer, lead: str = "") -> None:
        self._network, self._specials = generator.eval(), tokenizer.specials
        self._device = next(generator.parameters()).device
        self._reader = Reader(_nothing_said, tokenizer, generator.encoder.config.positions, lead)
        lexicon = lexicon_of(tokenizer)
        self._names = tokenizer.spelled(range(tokenizer.vocab_size))
        barred = lexicon.continues.clone()
        barred[list(self._specials)] = True
        has_letters = torch.tensor([_has_letters(name) for name in self._names])
        self._barred = torch.stack([barred | has_letters, barred | ~has_letters]).to(self._device)  # [2, V]

    def split(self, texts: Sequence[str]) -> list[Reading]:
        """Texts cut into tokens, of which nothing is said: to suggest, no more is needed."""
        return list(self._reader.read(texts))

    @torch.no_grad()
    def suggest(self, asked: Sequence[tuple[Reading, Word]], count: int) -> list[list[Suggestion]]:
        """The best `count` for each of the words, best first, without the word itself."""
        found: list[list[Suggestion]] = [[] for _ in asked]
        rows = [self._row(reading, word) for reading, word in asked]
        words = [reading.text[word.start : word.stop] for reading, word in asked]
        for batch in batches(rows, self._specials, self._device, self._network.encoder.config.positions):
            chances = spoken(self._network, batch, self._specials.mask).softmax(-1)
            are_words = [int(_has_letters(words[n])) for n in batch.numbers]
            best = chances.masked_fill(self._barred[are_words], 0).topk(min(_SPELLINGS * (count + 1), len(self._names)))
            for n, values, ids in zip(batch.numbers, best.values.tolist(), best.indices.tolist(), strict=True):
                found[n] = self._told(words[n], values, ids)[:count]
        return found

    def _row(self, reading: Reading, word: Word) -> np.ndarray:
        """As much around the word as the network reads, with a mask in its place."""
        ids, room = reading.pieces.ids, self._network.encoder.config.positions - ENDS - 1
        before, after = ids[: word.first], ids[word.last :]
        left = min(len(before), max(room // 2, room - len(after)))
        rest = min(len(self._reader.lead), max(0, room - len(before) - len(after)))
        lead, mask = self._reader.lead[len(self._reader.lead) - rest :], [self._specials.mask]
        return np.concatenate([lead, before[len(before) - left :], mask, after[: room - left]])

    def _told(self, word: str, chances: list[float], ids: list[int]) -> list[Suggestion]:
        pairs = zip(ids, chances, strict=True)
        others = [(self._names[i], chance) for i, chance in pairs if chance and self._names[i].lower() != word.lower()]
        best: dict[str, float] = {}
        for name, chance in others:
            best.setdefault(_cased(name, word), chance)
        return [Suggestion(name, chance) for name, chance in best.items()]


def _nothing_said(rows: Sequence[Row]) -> list[np.ndarray]:
    return [np.zeros(len(row.ids) - row.first, dtype=np.float32) for row in rows]


def _has_letters(text: str) -> bool:
    """Or digits."""
    return any(character.isalnum() for character in text)


def _cased(name: str, word: str) -> str:
    """A name without capitals, written as the word is."""
    if name != name.lower():
        return name
    return name.upper() if len(word) > 1 and word.isupper() else name.capitalize() if word[:1].isupper() else name
