"""Minimal pairs: two sentences that differ in one thing, of which one is right (BLiMP: Warstadt et al., 2020, arXiv
1912.00582). A model that gives the right one the higher score has understood something."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from elektron.tasks.metrics import wilson

_GOOD, _BAD, _PHENOMENON, _SET = "sentence_good", "sentence_bad", "linguistics_term", "UID"


class Pair(NamedTuple):
    good: str
    bad: str
    phenomenon: str
    set: str


class Accuracy(NamedTuple):
    """How often the right one won; where both are alike, half."""

    right: float
    pairs: int

    @property
    def value(self) -> float:
        return self.right / self.pairs

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, of 95%."""
        return wilson(self.right, self.pairs)


def read_pairs(paths: Sequence[str]) -> Iterator[Pair]:
    """Of JSON lines, in files or in the .jsonl files of folders."""
    for path in (found for name in paths for found in _files(Path(name))):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                record = json.loads(line)
                good, bad = record[_GOOD], record[_BAD]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: no pair with {_GOOD!r} and {_BAD!r} ({error})") from error
            yield Pair(good, bad, str(record.get(_PHENOMENON, path.stem)), str(record.get(_SET, path.stem)))


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} has no .jsonl files with pairs")
    return files


def accuracies(scored: Iterable[tuple[Pair, float, float]]) -> tuple[dict[str, Accuracy], dict[str, Accuracy]]:
    """By phenomenon and by set, of pairs and the scores of their good and their bad sentence."""
    by_phenomenon: dict[str, Accuracy] = {}
    by_set: dict[str, Accuracy] = {}
    for pair, good, bad in scored:
        right = 0.5 * ((good > bad) + (good >= bad))
        for found, name in ((by_phenomenon, pair.phenomenon), (by_set, pair.set)):
            before = found.get(name, Accuracy(0.0, 0))
            found[name] = Accuracy(before.right + right, before.pairs + 1)
    return by_phenomenon, by_set


def overall(found: Iterable[Accuracy]) -> Accuracy:
    parts = list(found)
    return Accuracy(sum(part.right for part in parts), sum(part.pairs for part in parts))
