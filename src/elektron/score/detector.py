"""Texts judged: their words, how likely each was replaced, and what would be better. One way for all who ask."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from elektron.score.calibration import Calibration
from elektron.score.reader import GATHERED, Reader, Reading
from elektron.score.suggest import Suggester, Suggestion
from elektron.score.words import Word, words_of


class Judged(NamedTuple):
    """A text as it was read, and its words."""

    reading: Reading
    words: list[Word]


class Detector:
    """A discriminator that reads, what mends its probabilities, and its generator, if there is one."""

    def __init__(self, reader: Reader, calibration: Calibration, suggester: Suggester | None) -> None:
        self._reader, self._suggester, self.calibration = reader, suggester, calibration

    @property
    def suggests(self) -> bool:
        return self._suggester is not None

    def judge(self, texts: Iterable[str], gathered: int = GATHERED) -> Iterator[Judged]:
        """Each text in turn; with `gathered` 0, as soon as it is there."""
        for reading in self._reader.read(texts, gathered):
            yield Judged(reading, words_of(reading, self.calibration))

    def locate(self, texts: Sequence[str]) -> list[Judged]:
        """Where the words of texts are, at little cost: the discriminator is not asked."""
        if self._suggester is None:
            return list(self.judge(texts))
        return [Judged(reading, words_of(reading)) for reading in self._suggester.split(texts)]

    def suggest(self, asked: Sequence[tuple[Reading, Word]], count: int) -> list[list[Suggestion]]:
        """The best words in the place of each, of one text or of many; none where there is no generator."""
        return self._suggester.suggest(asked, count) if self._suggester else [[] for _ in asked]
