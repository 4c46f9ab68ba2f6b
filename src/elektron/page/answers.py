"""What is asked of the networks, and what they answer: many questions at a time."""

from collections.abc import Sequence
from typing import NamedTuple

from elektron.score.detector import Detector, Judged
from elektron.score.suggest import Suggestion
from elektron.score.words import Word


class Detect(NamedTuple):
    """How likely was each word of a text replaced?"""

    text: str


class Suggest(NamedTuple):
    """What would be better in the place of the words that begin at `starts`?"""

    text: str
    starts: tuple[int, ...]
    count: int


class Better(NamedTuple):
    """A word, and what would be better in its place."""

    word: Word
    suggestions: list[Suggestion]


Question = Detect | Suggest
Answer = list[Word] | list[Better] | KeyError
"""The KeyError names a start at which there is no word."""


def size_of(question: Question) -> int:
    """How long it takes to answer, in about the characters that are read: a suggestion reads a row of its own."""
    return len(question.text) if isinstance(question, Detect) else 500 * len(question.starts)


def answers(detector: Detector, questions: Sequence[Question]) -> list[Answer]:
    """Each question's own answer; all texts go to the discriminator together, and all words to the generator."""
    found: dict[int, Answer] = {}
    detections = {n: question for n, question in enumerate(questions) if isinstance(question, Detect)}
    for n, judged in zip(detections, detector.judge([q.text for q in detections.values()]), strict=True):
        found[n] = judged.words
    suggestions = {n: question for n, question in enumerate(questions) if isinstance(question, Suggest)}
    found |= dict(zip(suggestions, _suggested(detector, list(suggestions.values())), strict=True))
    return [found[n] for n in range(len(questions))]


def _suggested(detector: Detector, questions: list[Suggest]) -> list[Answer]:
    located = [_words_at(*pair) for pair in zip(detector.locate([q.text for q in questions]), questions, strict=True)]
    asked = [pair for found in located if isinstance(found, list) for pair in found]
    most = max((question.count for question in questions), default=0)
    better = iter(detector.suggest(asked, most))
    return [
        [Better(word, next(better)[: question.count]) for _, word in found] if isinstance(found, list) else found
        for question, found in zip(questions, located, strict=True)
    ]


def _words_at(judged: Judged, question: Suggest) -> list[tuple] | KeyError:
    words = {word.start: word for word in judged.words}
    missing = next((start for start in question.starts if start not in words), None)
    if missing is not None:
        return KeyError(missing)
    return [(judged.reading, words[start]) for start in question.starts]
