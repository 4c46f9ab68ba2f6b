"""elektron score [FILE ...] --model MODEL: one number for each line of text, the higher the better it goes together.
With --pairs, how often the better of two sentences wins; with --rerank, hypotheses in a better order. Reads standard
input if there is no file."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console
from rich.progress import track

from elektron.config import parse
from elektron.data.files import write_json
from elektron.score.lines import keep_bytes
from elektron.score.pairs import Accuracy, Pair, accuracies, overall, read_pairs
from elektron.score.reader import GATHERED
from elektron.score.rerank import Candidates, Errors, read_candidates
from elektron.score.sentences import Total, Way, score_of
from elektron.tasks.results import markdown
from elektron.verbs.judges import Asked, Judges, gathered_for, lines_of, open_judges

_WEIGHTS = (0.0, *np.geomspace(0.01, 10, 61).tolist())
"""That are tried on a list to tune with."""


@dataclass(frozen=True, kw_only=True)
class Config(Asked):
    """elektron score"""

    by: Literal["auto", "detection", "energy", "masked"] = "auto"
    """detection: how likely no token was replaced; energy: Electric's pseudo-log-likelihood; masked: that of a masked
    LM, which takes a pass for each token; auto: what the model was trained for."""
    total: Total = "sum"
    """Over the tokens of a text; the mean does not mind how long it is."""
    pairs: tuple[str, ...] = ()
    """Minimal pairs as BLiMP's: .jsonl files, or folders of them."""
    rerank: str = ""
    """Lists of hypotheses to put in a better order."""
    tune: str = ""
    """Others, on which the weight of our scores is chosen."""
    weight: float = 0.0
    """Of our scores, beside the first ones; 0: as tuned."""
    json: bool = False
    """Print JSON."""
    out: str = ""
    """Write the results of --pairs or --rerank to this file, as JSON."""

    def __post_init__(self) -> None:
        if self.pairs and self.rerank:
            raise ValueError("one of --pairs and --rerank")
        if self.rerank and not (self.tune or self.weight):
            raise ValueError("--rerank needs --tune FILE, other lists to choose the weight on, or --weight")
        if self.rerank and self.tune and Path(self.rerank).resolve() == Path(self.tune).resolve():
            raise ValueError("--tune must not be the list that is judged: the weight would fit it too well")


class Scorer:
    """Texts to numbers."""

    def __init__(self, judges: Judges, config: Config) -> None:
        self.way: Way = judges.way if config.by == "auto" else config.by
        self._reader = judges.reader(self.way)
        self._total: Total = config.total

    def __call__(self, texts: Iterable[str], gathered: int = GATHERED) -> Iterator[float]:
        for reading in self._reader.read(texts, gathered):
            yield score_of(reading, self.way, self._total)


def main(arguments: Sequence[str]) -> None:
    config = parse(Config(), arguments, "elektron score", __doc__ or "", first="files")
    score = Scorer(open_judges(config), config)
    if config.pairs:
        _judge_pairs(config, score)
    elif config.rerank:
        _rerank(config, score)
    else:
        _score_lines(config, score)


def _score_lines(config: Config, score: Scorer) -> None:
    keep_bytes(sys.stdout)
    given, asked = tee(lines_of(config, is_printing=True))
    scores = score((line.text for line in asked), gathered_for(config))
    for line, value in zip(given, scores, strict=True):
        if config.json:
            print(json.dumps({**(line.record or {"text": line.text}), "score": round(value, 6)}))
        else:
            print(f"{value:.4f}\t{line.text}")


def _judge_pairs(config: Config, score: Scorer) -> None:
    pairs = list(read_pairs(config.pairs))
    console = Console(highlight=False, soft_wrap=True)
    bar = Console(stderr=True)
    values = list(track(score(_both(pairs)), "sentences", 2 * len(pairs), console=bar, transient=True))
    by_phenomenon, by_set = accuracies(zip(pairs, values[::2], values[1::2], strict=True))
    whole = overall(by_set.values())
    rows = [*by_phenomenon.items(), ("all", whole)]
    console.print(markdown(["phenomenon", "accuracy", "95%", "pairs"], [_row(name, found) for name, found in rows]))
    if config.out:
        content = {
            "by": score.way,
            "total": config.total,
            "accuracy": whole.value,
            "interval": whole.interval,
            "phenomena": {name: found.value for name, found in by_phenomenon.items()},
            "sets": {name: found.value for name, found in by_set.items()},
        }
        write_json(Path(config.out), content)


def _both(pairs: Sequence[Pair]) -> Iterator[str]:
    for pair in pairs:
        yield from pair[:2]


def _row(name: str, found: Accuracy) -> list[str]:
    low, high = found.interval
    return [name, f"{100 * found.value:.1f}", f"{100 * low:.1f} to {100 * high:.1f}", f"{found.pairs:,}"]


def _rerank(config: Config, score: Scorer) -> None:
    console = Console(highlight=False, soft_wrap=True)
    weight = config.weight
    if config.tune:
        weight = _errors(Path(config.tune), score).best_weight(_WEIGHTS)
    errors = _errors(Path(config.rerank), score)
    rates = {"first": errors.at(0), "reranked": errors.at(weight), "best of each list": errors.least}
    console.print(f"weight {weight:.3g}, {errors.words:,} words")
    lines_of_table = [[name, f"{100 * wrong / errors.words:.2f}", f"{wrong:,}"] for name, wrong in rates.items()]
    console.print(markdown(["order", "word error rate", "errors"], lines_of_table))
    if config.out:
        content = {"by": score.way, "weight": weight, "words": errors.words, "errors": rates}
        write_json(Path(config.out), content)


def _errors(path: Path, score: Scorer) -> Errors:
    lists = read_candidates(path)
    texts = [text for one in lists for text in one.texts]
    values = list(track(score(texts), path.name, len(texts), console=Console(stderr=True), transient=True))
    return Errors(lists, _in_lists(lists, values))


def _in_lists(lists: Sequence[Candidates], values: list[float]) -> list[np.ndarray]:
    ends = np.cumsum([len(one.texts) for one in lists])
    return np.split(np.array(values), ends[:-1])
