"""Masking, sampling and labels of one row, and the loss, from their definitions."""

import math

import numpy as np

from reference.hashing import fold, uniform

POSITIONS, KEEP, SAMPLE = 0, 1, 2
BLOCK = 128


def distinct_positions(candidates: list[int], count: int, key: int) -> list[int]:
    """The `count` candidates with the smallest hashes."""
    return sorted(sorted(candidates, key=lambda position: (fold(key, position), position))[:count])


def repeated_positions(candidates: list[int], count: int, key: int) -> list[int]:
    """`count` independent draws."""
    size = np.float32(len(candidates))  # draws lie so close that it matters what they are multiplied in
    return sorted(candidates[int(np.float32(uniform(fold(key, i))) * size)] for i in range(count))


def masked_row(original: list[int], positions: list[int], keep_rate: float, mask: int, key: int) -> list[int]:
    row = list(original)
    for i, position in enumerate(positions):
        if uniform(fold(key, i)) >= keep_rate:
            row[position] = mask
    return row


def sampled_token(logits: list[float], temperature: float, forbidden: int | None, key: int) -> int:
    """The best block of words after Gumbel noise, by the sum of its exponentials; the best word of it, likewise."""
    scores = [-math.inf if token == forbidden else logit / temperature for token, logit in enumerate(logits)]
    blocks = [scores[start : start + BLOCK] for start in range(0, len(scores), BLOCK)]
    block = noisiest([log_sum_exp(block) for block in blocks], fold(key, 0))
    return block * BLOCK + noisiest(blocks[block], fold(key, 1))


def noisiest(scores: list[float], key: int) -> int:
    noisy = [score - math.log(-math.log(uniform(fold(key, i)))) for i, score in enumerate(scores)]
    return noisy.index(max(noisy))


def log_sum_exp(values: list[float]) -> float:
    top = max(values)
    return top if top == -math.inf else top + math.log(sum(math.exp(x - top) for x in values))


def corrupted_row(original: list[int], positions: list[int], samples: list[int]) -> list[int]:
    row = list(original)
    for position in set(positions):
        drawn = [sample for place, sample in zip(positions, samples, strict=True) if place == position]
        row[position] = sum(drawn) // len(drawn)
    return row


def cross_entropy(logits: list[float], target: int) -> float:
    return log_sum_exp(logits) - logits[target]


def binary_cross_entropy(logit: float, label: bool) -> float:
    return math.log1p(math.exp(-logit if label else logit))


def area_under_curve(scores: list[float], labels: list[bool]) -> float:
    """Over all pairs of a replaced and an original token."""
    wins = pairs = 0.0
    for score, label in zip(scores, labels, strict=True):
        for other, other_label in zip(scores, labels, strict=True):
            if label and not other_label:
                pairs += 1
                wins += (score > other) + 0.5 * (score == other)
    return wins / pairs
