"""Metrics as the field reports them: fractions of one, and zero where a ratio has no denominator.

Each is held to the library or script that set its definition: classes to scikit-learn, correlations to scipy, entities
to seqeval (and so conlleval), answers to the evaluation of SQuAD 2.0. Predictions come first, then what is true.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:an?|the)\b")

_LEVEL = 1.959963984540054
"""Standard deviations to both sides of 95% of a normal distribution."""

Span = tuple[str, int, int]
"""An entity's type, its first and its last token."""


class EntityScores(NamedTuple):
    """Of all entities of all sentences."""

    precision: float
    recall: float
    f1: float


class DetectionScores(NamedTuple):
    """Of all tokens; precision counts twice as much as recall."""

    precision: float
    recall: float
    f05: float


class Thresholds(NamedTuple):
    """The best scores that leaving questions unanswered can give, and the highest no-answer score still answered."""

    best_exact: float
    best_exact_thresh: float
    best_f1: float
    best_f1_thresh: float


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


def _paired(predicted: ArrayLike, true: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Both as arrays; a length that differs would be broadcast, not refused."""
    first, second = np.asarray(predicted), np.asarray(true)
    assert first.shape == second.shape, f"{first.shape} predictions of {second.shape}"
    return first, second


def _positives(said: np.ndarray, there: np.ndarray) -> tuple[int, int, int]:
    """The numbers of those found, those said and those there are."""
    return int((said & there).sum()), int(said.sum()), int(there.sum())


def _precision_recall_f(correct: int, predicted: int, true: int, beta: float) -> tuple[float, float, float]:
    weight = beta**2
    f = _ratio((1 + weight) * correct, weight * true + predicted)
    return _ratio(correct, predicted), _ratio(correct, true), f


def accuracy(predicted: ArrayLike, true: ArrayLike) -> float:
    said, there = _paired(predicted, true)
    return _ratio(int(np.count_nonzero(said == there)), there.size)


def f1(predicted: ArrayLike, true: ArrayLike) -> float:
    """Of class 1."""
    said, there = (side == 1 for side in _paired(predicted, true))
    return _precision_recall_f(*_positives(said, there), beta=1.0)[2]


def matthews(predicted: ArrayLike, true: ArrayLike) -> float:
    """Matthews' correlation, of any number of classes (Gorodkin, 2004); 0 where either side is of one class."""
    said, there = _paired(predicted, true)
    # Python's integers: the products of a large set's counts do not fit 64 bits.
    p, t, n = Counter(said.tolist()), Counter(there.tolist()), there.size
    covariance = n * int(np.count_nonzero(said == there)) - sum(p[k] * t[k] for k in t)
    variances = [n * n - sum(count * count for count in side.values()) for side in (p, t)]
    return _ratio(covariance, sqrt(prod(variances)))


def pearson(predicted: ArrayLike, true: ArrayLike) -> float:
    """The linear correlation; 0 where a side is constant and there is none."""
    sides = [side.astype(np.float64) for side in _paired(predicted, true)]
    # Asked of the values: a constant's distance from its mean need not round to zero.
    if any(side.size == 0 or side.min() == side.max() for side in sides):
        return 0.0
    first, second = map(_standardised, sides)
    return float(np.clip(first @ second, -1.0, 1.0))


def spearman(predicted: ArrayLike, true: ArrayLike) -> float:
    """The correlation of ranks; 0 where a side is constant and there is none."""
    return pearson(*map(_ranks, _paired(predicted, true)))


def _standardised(values: np.ndarray) -> np.ndarray:
    """Of mean zero and length one; the largest is divided out first, so that no square over- or underflows."""
    distances = values - values.mean()
    distances = distances / np.abs(distances).max()
    return distances / np.linalg.norm(distances)


def _ranks(values: np.ndarray) -> np.ndarray:
    """From one; equal values share the mean of their ranks, and what is no number has none."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.where(np.isnan(values), np.nan, ranks[inverse])


def spans(tags: Sequence[str]) -> set[Span]:
    """The entities of tags like B-PER, in whatever of the IOB and BIOES manners, as seqeval reads them when not strict:
    no sequence is wrong, a type that changes ends an entity and begins one. L and U are no marks of their own."""
    found: set[Span] = set()
    before, kind_before, start = "O", "", 0
    for i, tag in enumerate([*tags, "O"]):
        mark, kind = tag[0], tag[1:].split("-", 1)[-1] or "_"
        changes = kind != kind_before
        if before in "ES" or (before in "BI" and mark in "BSO") or (before not in "O." and changes):
            found.add((kind_before, start, i - 1))
        if mark in "BS" or (before in "ESO" and mark in "EI") or (mark not in "O." and changes):
            start = i
        before, kind_before = mark, kind
    return found


def entity_f1(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> EntityScores:
    """Of sentences of tags; an entity is found if its type and both of its ends are."""
    lengths = [[len(sentence) for sentence in side] for side in (predicted, true)]
    assert lengths[0] == lengths[1], f"sentences of {lengths[0]} and {lengths[1]} tags"
    said, there = (spans([tag for sentence in side for tag in (*sentence, "O")]) for side in (predicted, true))
    return EntityScores(*_precision_recall_f(len(said & there), len(said), len(there), beta=1.0))


def token_accuracy(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> float:
    """Of sentences of tags."""
    hits = [a == b for pair in zip(predicted, true, strict=True) for a, b in zip(*pair, strict=True)]
    return _ratio(sum(hits), len(hits))


def detection(predicted: ArrayLike, true: ArrayLike) -> DetectionScores:
    """Of flags that are true where a token is incorrect; F0.5, for an error missed is better than one invented (Ng et
    al., 2014)."""
    said, there = (side.astype(bool) for side in _paired(predicted, true))
    return DetectionScores(*_precision_recall_f(*_positives(said, there), beta=0.5))


def average_precision(scores: ArrayLike, true: ArrayLike) -> float:
    """The area under precision over recall, by steps: what is found from each score on, equal ones together."""
    _, said, found = _by_threshold(scores, true)
    gains = np.diff(found, prepend=0)
    return _ratio(float((gains * found / said).sum()), float(gains.sum()))


def area_under_curve(scores: ArrayLike, true: ArrayLike) -> float | None:
    """The chance that one that is true scores above one that is not, ties counting half; None if there is no pair."""
    below, _ = _placements(scores, true)
    return float(below.mean()) if below.size else None


def area_interval(scores: ArrayLike, true: ArrayLike) -> tuple[float, float]:
    """Of 95%, of the area under the curve (DeLong et al., 1988); anything may be where either side has but one."""
    below, above = _placements(scores, true)
    if min(below.size, above.size) < 2:
        return 0.0, 1.0
    spread = _LEVEL * sqrt(below.var(ddof=1) / below.size + above.var(ddof=1) / above.size)
    return max(0.0, float(below.mean()) - spread), min(1.0, float(below.mean()) + spread)


def _placements(scores: ArrayLike, true: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """For each that is true the share of the others below it, for each of the others the share of the true above it,
    ties counting half; none where a side is empty."""
    values, there = _paired(scores, true)
    there = there.astype(bool)
    positives, negatives = int(there.sum()), int((~there).sum())
    if not positives or not negatives:
        return np.empty(0), np.empty(0)
    ranks = _ranks(values)
    below = (ranks[there] - _ranks(values[there])) / negatives
    return below, 1 - (ranks[~there] - _ranks(values[~there])) / positives


def wilson(right: float, count: int) -> tuple[float, float]:
    """The interval of 95% of a share, of which `right` of `count` were seen (Wilson, 1927)."""
    share, z = right / count, _LEVEL
    middle, scale = share + z * z / (2 * count), 1 + z * z / count
    spread = z * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - spread) / scale, (middle + spread) / scale


def resampled(ends: ArrayLike, statistic: Callable[[np.ndarray], float], rounds: int = 200) -> tuple[float, float]:
    """The interval of 95% of a statistic of words, had other sentences been drawn: the bootstrap (Efron, 1979).
    `statistic` takes the numbers of words; sentences end before those in `ends`, in order."""
    draw = np.random.default_rng(0)
    sentences = np.split(np.arange(np.asarray(ends)[-1]), np.asarray(ends)[:-1])
    chosen = draw.integers(len(sentences), size=(rounds, len(sentences)))
    found = [statistic(np.concatenate([sentences[number] for number in some])) for some in chosen]
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def best_detection_threshold(scores: ArrayLike, true: ArrayLike) -> float:
    """The score from which on tokens are to be flagged for the highest F0.5; the highest of several."""
    thresholds, said, found = _by_threshold(scores, true)
    return float(thresholds[np.argmax(1.25 * found / (0.25 * found[-1] + said))])


def _by_threshold(scores: ArrayLike, true: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every score from the highest on, how many have it or more, and how many of these are true."""
    values, there = _paired(scores, true)
    order = np.argsort(-values, kind="stable")
    values, found = values[order], np.cumsum(there[order].astype(bool))
    is_last = np.ones(len(values), dtype=bool)
    is_last[:-1] = values[1:] != values[:-1]
    return values[is_last], np.flatnonzero(is_last) + 1, found[is_last]


def normalised(answer: str) -> str:
    """Without case, ASCII punctuation, English articles, and with one space between words (Rajpurkar et al., 2016,
    arXiv:1606.05250). Other punctuation stays, but parts words: an article beside it goes."""
    return " ".join(_ARTICLE.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction is one of the answers, once normalised."""
    return float(normalised(prediction) in _golds(answers))


def overlap_f1(prediction: str, answers: Sequence[str]) -> float:
    """F1 of the words of the prediction, by the answer that is best for it."""
    words = normalised(prediction).split()
    return max(_overlap(words, gold.split()) for gold in _golds(answers))


def _golds(answers: Sequence[str]) -> list[str]:
    """Normalised. An answer of which nothing is left does not count, and where none counts, the answer is to say
    nothing: SQuAD 2.0's rule (Rajpurkar et al., 2018, arXiv:1806.03822); 1.1 has none for such answers."""
    return [gold for gold in map(normalised, answers) if gold] or [""]


def _overlap(prediction: list[str], gold: list[str]) -> float:
    """Through precision and recall, for the same rounding as the official scores: thresholds compare their sums."""
    if not (prediction and gold):
        return float(prediction == gold)
    same = (Counter(prediction) & Counter(gold)).total()
    precision, recall = same / len(prediction), same / len(gold)
    return _ratio(2 * precision * recall, precision + recall)


def squad_scores(predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """exact, f1 and total (a count) of all questions; where some have no answer, also of those that have one (HasAns_)
    and that have none (NoAns_). A question without a prediction scores 0; a prediction without a question is ignored.
    """
    scores = _by_question(predictions, answers)
    groups = {"": list(scores.values())}
    if not all(answers.values()):
        groups["HasAns_"] = [score for key, score in scores.items() if answers[key]]
        groups["NoAns_"] = [score for key, score in scores.items() if not answers[key]]
    filled = {prefix: group for prefix, group in groups.items() if group or not prefix}
    return {prefix + name: value for prefix, group in filled.items() for name, value in _means(group).items()}


def best_threshold(
    predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]], no_answer: Mapping[str, float]
) -> Thresholds:
    """What is gained by answering only questions whose `no_answer` score is at most a threshold: from none answered
    (threshold 0, whatever the scores) one question more at a time, the surest first, those of one score in the order of
    `no_answer`, and the first of the best kept. `predictions` are those made where an answer must be given."""
    scores = _by_question(predictions, answers)
    order = sorted((key for key in no_answer if key in answers), key=lambda key: no_answer[key])
    thresholds = [0.0, *(float(no_answer[key]) for key in order)]
    unanswerable = sum(not golds for golds in answers.values())

    def best(metric: int) -> tuple[float, float]:
        gains = [scores[key][metric] if answers[key] else -float(bool(predictions.get(key))) for key in order]
        totals = np.cumsum([unanswerable, *gains])
        return _ratio(totals.max(), len(answers)), thresholds[totals.argmax()]

    return Thresholds(*best(0), *best(1))


def _by_question(
    predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]
) -> dict[str, tuple[float, float]]:
    """Exact match and F1."""
    given = {key: (predictions[key], golds) for key, golds in answers.items() if key in predictions}
    return {key: (exact(*given[key]), overlap_f1(*given[key])) if key in given else (0.0, 0.0) for key in answers}


def _means(scores: Sequence[tuple[float, float]]) -> dict[str, float]:
    total = len(scores)
    return {
        "exact": _ratio(sum(score[0] for score in scores), total),
        "f1": _ratio(sum(score[1] for score in scores), total),
        "total": total,
    }
