"""What is asked of the networks, and what they answer: many questions at a time."""

from collections.abc import Sequence
from typing import NamedTuple

from elektron.score.detector import Detector, Judged
from elektron.score.reader import Reading
from elektron.score.suggest import Suggestion
from elektron.score.words import Word

_CHARACTERS_OF_A_ROW = 500
"""About: a suggestion reads a row of its own, however long the text."""


class Detect(NamedTuple):
    """How likely was each word of a text replaced?"""

    text: str


class Suggest(NamedTuple):
    """What would be better in the place of the words that begin at `starts`, `most` for each?"""

    text: str
    starts: tuple[int, ...]
    most: int


class Told(NamedTuple):
    """A word, and what would be better in its place, if that was asked."""

    word: Word
    better: list[Suggestion]


Question = Detect | Suggest


def size_of(question: Question) -> int:
    """How much there is to do, in characters that are read."""
    return len(question.text) if isinstance(question, Detect) else _CHARACTERS_OF_A_ROW * len(question.starts)


def answers(detector: Detector, questions: Sequence[Question]) -> list[list[Told]]:
    """Each question's own answer; all texts go to the discriminator together, and all words to the generator. Where no
    word begins, nothing is told."""
    detections = {n: question for n, question in enumerate(questions) if isinstance(question, Detect)}
    suggestions = {n: question for n, question in enumerate(questions) if isinstance(question, Suggest)}
    judged = detector.judge([question.text for question in detections.values()])
    found = {n: [Told(word, []) for word in of_text.words] for n, of_text in zip(detections, judged, strict=True)}
    found |= dict(zip(suggestions, _suggested(detector, list(suggestions.values())), strict=True))
    return [found[n] for n in range(len(questions))]


def _suggested(detector: Detector, questions: Sequence[Suggest]) -> list[list[Told]]:
    located = detector.locate([question.text for question in questions])
    asked = [_words_at(of_text, question.starts) for of_text, question in zip(located, questions, strict=True)]
    most = max((question.most for question in questions), default=0)
    better = iter(detector.suggest([pair for pairs in asked for pair in pairs], most))
    return [
        [Told(word, next(better)[: question.most]) for _, word in pairs]
        for question, pairs in zip(questions, asked, strict=True)
    ]


def _words_at(judged: Judged, starts: Sequence[int]) -> list[tuple[Reading, Word]]:
    words = {word.start: word for word in judged.words}
    return [(judged.reading, words[start]) for start in starts if start in words]
