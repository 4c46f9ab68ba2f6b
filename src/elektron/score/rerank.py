"""Lists of hypotheses, of a recogniser or translator, put in a better order: to each first score a weight times ours.

    total = first + weight * ours

The weight is the one with the fewest word errors on a list to tune with. Word errors are the least insertions,
deletions and substitutions that make the reference of a hypothesis.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Candidates(NamedTuple):
    """What might have been said."""

    reference: str
    texts: list[str]
    first: np.ndarray  # [n] the scores they came with


def read_candidates(path: Path) -> list[Candidates]:
    """Of JSON lines {"reference": ..., "hypotheses": [{"text": ..., "score": ...}, ...]}, or of one JSON object of
    utterances {"hyp_1": {"text": ..., "score": ...}, ..., "ref": ...}."""
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".jsonl":
            records = [json.loads(line) for line in text.splitlines()]
            return [_candidates(record["reference"], record["hypotheses"]) for record in records]
        return [_of_utterance(utterance) for utterance in json.loads(text).values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: no list of hypotheses as described in the guide ({error!r})") from error


def _of_utterance(utterance: dict[str, Any]) -> Candidates:
    return _candidates(utterance["ref"], [found for name, found in utterance.items() if name != "ref"])


def _candidates(reference: str, hypotheses: list[dict[str, Any]]) -> Candidates:
    if not hypotheses:
        raise ValueError("no hypotheses")
    first = np.array([float(found["score"]) for found in hypotheses])
    return Candidates(reference.strip(), [found["text"].strip() for found in hypotheses], first)


def word_errors(reference: str, text: str) -> int:
    wanted, given = reference.split(), text.split()
    row = list(range(len(given) + 1))
    for i, word in enumerate(wanted, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(given, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


class Errors:
    """Lists with our scores, and how many words are wrong in what comes first."""

    def __init__(self, lists: Sequence[Candidates], ours: Sequence[np.ndarray]) -> None:
        self._lists, self._ours = lists, ours
        self._errors = [np.array([word_errors(one.reference, text) for text in one.texts]) for one in lists]
        self.words = sum(len(one.reference.split()) for one in lists)

    def at(self, weight: float) -> int:
        pairs = zip(self._lists, self._ours, self._errors, strict=True)
        return int(sum(errors[np.argmax(one.first + weight * ours)] for one, ours, errors in pairs))

    @property
    def least(self) -> int:
        """Of the best hypothesis of each."""
        return int(sum(errors.min() for errors in self._errors))

    def best_weight(self, weights: Sequence[float]) -> float:
        """The smallest of those with the fewest errors."""
        return min(weights, key=lambda weight: (self.at(weight), weight))
