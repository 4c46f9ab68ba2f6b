"""Electric's noise, posterior and losses of one row, from their definitions."""

import math
from typing import NamedTuple

from reference.electra import POSITIONS, SAMPLE, cross_entropy, distinct_positions, sampled_token
from reference.hashing import fold


class Noised(NamedTuple):
    """A row with samples in it."""

    corrupted: list[int]
    labels: list[bool]
    log_q: list[float]
    """Of the corrupted row's tokens."""


def ordinary_places(tokens: list[int], specials: set[int]) -> list[int]:
    return [place for place, token in enumerate(tokens) if token not in specials]


def noised_row(tokens: list[int], logits: list[list[float]], ordinary: list[int], count: int, key: int) -> Noised:
    """`logits` are the noise model's at every token, given the others of the original row."""
    positions = distinct_positions(ordinary, count, fold(key, POSITIONS))
    corrupted = list(tokens)
    for position in positions:
        corrupted[position] = sampled_token(logits[position], 1.0, None, fold(fold(key, SAMPLE), position))
    log_q = [-cross_entropy(scores, token) for scores, token in zip(logits, corrupted, strict=True)]
    return Noised(corrupted, [place in positions for place in range(len(tokens))], log_q)


def posterior(p: float, q: float, sampled: int, ordinary: int) -> float:
    """Of `ordinary` tokens, `sampled` come from q and the others from p: how likely is this one from q? Both are
    probabilities of the token itself."""
    from_noise = sampled / ordinary * q
    from_text = (ordinary - sampled) / ordinary * p
    return from_noise / (from_noise + from_text)


def contrast_loss(energy: float, log_q: float, sampled: int, ordinary: int, label: bool) -> float:
    found = posterior(math.exp(-energy), math.exp(log_q), sampled, ordinary)
    return -math.log(found if label else 1 - found)


def expected_loss(energies: list[float], p: list[float], q: list[float], sampled: int, ordinary: int) -> float:
    """What a token costs on average, if text is p and noise is q, over the whole vocabulary."""
    total = 0.0
    for word, energy in enumerate(energies):
        for share, label in ((sampled * q[word], True), ((ordinary - sampled) * p[word], False)):
            total += share / ordinary * contrast_loss(energy, math.log(q[word]), sampled, ordinary, label)
    return total
