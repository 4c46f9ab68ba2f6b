"""Tokens that were judged, in bands: by frequency, form, place, what the generator did, and how sure it was.

Every way to cut tokens gives the names of its bands and the number of each token's; a number below zero is that of no
band. What is told of a band is the same for all.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from elektron.score.calibration import sigmoid
from elektron.score.errors import Tokens
from elektron.tasks.metrics import area_interval, area_under_curve, average_precision, wilson

EIGHTHS = 8
"""Bands of places in a row."""
_CHANCES = (0.001, 0.01, 0.1, 0.5)
"""Where bands of the generator's confidence meet."""

Cutting = tuple[list[str], np.ndarray]
"""Names of bands, and the number [n] of each token's."""


class Share(NamedTuple):
    """A share with its interval of 95%."""

    value: float
    low: float
    high: float


class Band(NamedTuple):
    """What is told of some tokens. They are flagged from a probability of one half on."""

    name: str
    tokens: int
    replaced: int
    predicted: float
    """The mean of their probabilities of being replaced."""
    loss: float
    """Nats a token, of the discriminator."""
    auc: Share | None
    """With DeLong's interval; like what follows, None where there is nothing to tell apart, or nothing to count."""
    average_precision: float | None
    recall: Share | None
    """Of the replaced, those flagged, with Wilson's interval."""
    precision: Share | None
    """Of the flagged, those replaced, likewise."""


class Cut(NamedTuple):
    """Tokens, cut in one way."""

    title: str
    told: str
    """How, in a sentence."""
    bands: list[Band]


def band_of(name: str, tokens: Tokens) -> Band:
    true, logits = tokens.replaced, tokens.logit.astype(np.float64)
    flagged = logits > 0
    caught, auc = int((flagged & true).sum()), area_under_curve(logits, true)
    has_both = auc is not None
    return Band(
        name,
        len(true),
        int(true.sum()),
        float(sigmoid(logits).mean()),
        float((np.logaddexp(0, logits) - logits * true).mean()),
        Share(auc, *area_interval(logits, true)) if has_both else None,
        average_precision(logits, true) if has_both else None,
        _share(caught, int(true.sum())),
        _share(caught, int(flagged.sum())) if has_both else None,
    )


def _share(part: int, whole: int) -> Share | None:
    return Share(part / whole, *wilson(part, whole)) if whole else None


def bands_of(tokens: Tokens, cutting: Cutting) -> list[Band]:
    """All bands that have tokens."""
    names, numbers = cutting
    inside = (numbers == number for number in range(len(names)))
    return [band_of(name, tokens.where(here)) for name, here in zip(names, inside, strict=True) if here.any()]


def by_count(counts: np.ndarray) -> Cutting:
    """Of how often tokens occur [n], in powers of ten."""
    edges = 10 ** np.arange(len(str(counts.max(initial=0))))  # 1, 10, 100, ...
    names = [f"{edge:,} to {10 * edge - 1:,}" for edge in edges.tolist()]
    return ["never", *names], np.searchsorted(edges, counts, side="right")


def by_place(positions: np.ndarray, length: int) -> Cutting:
    """Of places in rows of `length` tokens, in eighths."""
    starts = [-(-number * length // EIGHTHS) for number in range(EIGHTHS + 1)]
    names = [f"{start} to {stop - 1}" for start, stop in pairwise(starts)]
    return names, positions * EIGHTHS // length


def by_form(forms: np.ndarray) -> Cutting:
    return ["whole word", "first piece", "later piece"], forms


def by_deed(tokens: Tokens) -> Cutting:
    """Of what the generator did to a token."""
    changed = tokens.corrupted != tokens.original
    return ["left alone", "sampled as it was", "replaced"], np.where(tokens.asked, 1 + changed, 0)


def by_chance(chances: np.ndarray) -> Cutting:
    """Of the log-probabilities that the generator gave its samples, NaN where it was not asked."""
    told = [f"{100 * edge:g}%" for edge in _CHANCES]
    middle = [f"{low} to {high}" for low, high in pairwise(told)]
    numbers = np.searchsorted(np.log(_CHANCES), chances, side="right")
    return [f"below {told[0]}", *middle, f"{told[-1]} and more"], np.where(np.isnan(chances), -1, numbers)


def by_tag(tags: np.ndarray, names: Sequence[str]) -> Cutting:
    """Of the numbers of tags [n], the commonest first."""
    order = np.argsort(-np.bincount(tags, minlength=len(names)), kind="stable")
    return [names[int(number)] for number in order], np.argsort(order)[tags]


def cuts_of(tokens: Tokens, length: int, counts: np.ndarray) -> list[Cut]:
    """All ways, of tokens of rows of `length`; `counts` [V] is how often each token occurs in the text trained on."""
    text = f"occurs in {counts.sum():,} tokens of the training text, in powers of ten."
    ways = (
        (
            "Frequency of the original",
            f"By how often the token that stood there {text}",
            by_count(counts[tokens.original]),
        ),
        (
            "Frequency of what is read",
            f"By how often the token that stands there now {text}",
            by_count(counts[tokens.corrupted]),
        ),
        ("Words and pieces", "By whether the original is a word of its own.", by_form(tokens.form)),
        ("Place in the row", "By the token's position, in eighths of a row.", by_place(tokens.position, length)),
        (
            "What the generator did",
            "A token that it was asked for, and named as it was, is an original.",
            by_deed(tokens),
        ),
        (
            "Confidence of the generator",
            "By the probability that it gave the token that it sampled; of the tokens that it was asked for.",
            by_chance(tokens.chance),
        ),
    )
    cuts = [Cut(title, told, bands_of(tokens, cutting)) for title, told, cutting in ways]
    return [cut for cut in cuts if cut.bands]
