"""What the generator would rather have read: the best words in place of one."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from elektron.data.examples import in_order
from elektron.data.tokenizer import Tokenizer
from elektron.model.heads import Generator
from elektron.objectives.lexicon import lexicon_of
from elektron.score.reader import Reading
from elektron.score.words import Word

_TOKENS = 1 << 12


class Suggestion(NamedTuple):
    """A word, and how likely the generator finds it."""

    text: str
    probability: float


class Suggester:
    """A generator and its tokenizer. A word of several tokens gives way to one mask, and what is suggested is a token
    that is a word."""

    def __init__(self, generator: Generator, tokenizer: Tokenizer, count: int) -> None:
        self._network, self._tokenizer, self._count = generator.eval(), tokenizer, count
        self._device = next(generator.parameters()).device
        lexicon, specials = lexicon_of(tokenizer), tokenizer.specials
        self._names = [name.strip("\u2581\u0120") for name in tokenizer.tokens(range(tokenizer.vocab_size))]
        is_word = torch.tensor([any(character.isalnum() for character in name) for name in self._names])
        is_word[list(specials)] = False
        self._barred = (lexicon.continues | ~is_word).to(self._device)

    @torch.no_grad()
    def suggest(self, reading: Reading, words: Sequence[Word]) -> list[list[Suggestion]]:
        """The best for each of the words, best first, without the word itself."""
        found: list[list[Suggestion]] = [[] for _ in words]
        rows = [self._row(reading, word) for word in words]
        lengths = np.array([len(row) for row in rows])
        mask = self._tokenizer.specials.mask
        for numbers in in_order(lengths, _TOKENS) if len(rows) else ():
            tokens = np.full((len(numbers), lengths[numbers].max()), self._tokenizer.specials.pad, dtype=np.int64)
            for line, n in zip(tokens, numbers, strict=True):
                line[: len(rows[n])] = rows[n]
            given = torch.from_numpy(tokens).to(self._device)
            seen = torch.from_numpy(np.arange(tokens.shape[1]) < lengths[numbers][:, None]).to(self._device)
            hidden = self._network.encoder(given, torch.zeros_like(given), seen)[given == mask]  # [B, D]
            logits = torch.nn.functional.linear(
                self._network.head(hidden), self._network.table, self._network.head.bias
            )
            best = logits.float().softmax(-1).masked_fill(self._barred, 0).topk(self._count + 1)
            for n, chances, ids in zip(numbers.tolist(), best.values.tolist(), best.indices.tolist(), strict=True):
                found[n] = self._told(reading.text[words[n].start : words[n].stop], chances, ids)
        return found

    def _row(self, reading: Reading, word: Word) -> list[int]:
        """As much around the word as the network reads, with a mask in its place."""
        ids, specials = reading.pieces.ids.tolist(), self._tokenizer.specials
        room = self._network.encoder.config.positions - 3
        before, after = ids[: word.first], ids[word.last :]
        left = min(len(before), max(room // 2, room - len(after)))
        return [specials.cls, *before[len(before) - left :], specials.mask, *after[: room - left], specials.sep]

    def _told(self, word: str, chances: list[float], ids: list[int]) -> list[Suggestion]:
        pairs = zip(ids, chances, strict=True)
        others = [(self._names[i], chance) for i, chance in pairs if self._names[i].lower() != word.lower()]
        return [Suggestion(_cased(name, word), chance) for name, chance in others[: self._count]]


def _cased(name: str, word: str) -> str:
    """Written as the word is, where the vocabulary has no capitals."""
    if name != name.lower():
        return name
    return name.upper() if len(word) > 1 and word.isupper() else name.capitalize() if word[:1].isupper() else name
