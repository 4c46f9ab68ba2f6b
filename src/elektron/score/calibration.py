"""How far probabilities can be trusted, and how to mend them.

A discriminator's logits are of a generator's replacements, about one token in eight. A reader's errors are other ones
and fewer. With data in which errors are marked, two numbers are fitted by likelihood (Platt, 1999; Guo et al., 2017,
arXiv 1706.04599):

    p = sigmoid(logit / temperature + shift)

The temperature says how much too sure the network is, the shift how much rarer errors are than replacements were. Both
hold for texts that are read in one manner: what leads them in (score/reader.py) belongs to it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elektron.data.files import fields_of, read_json, sealed, unsealed, write_json

FILE = "calibration.json"
_NUMBERS, _LEAD, _SOURCE = ("temperature", "shift", "threshold"), "lead", "fitted_on"
_ROUNDS = 100
_PRIOR = 1e-3
"""How strongly the two numbers are drawn to 1 and 0, as so many tokens would: it decides where errors can be told apart
without fail."""


@dataclass(frozen=True)
class Calibration:
    """From logits to probabilities, and from which on words are marked."""

    temperature: float = 1.0
    shift: float = 0.0
    threshold: float = 0.5
    lead: str = ""
    """What was read before short texts when it was fitted."""

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        return sigmoid(logits / self.temperature + self.shift)


class Bin(NamedTuple):
    """Words that are about equally suspicious."""

    predicted: float
    """The mean of their probabilities."""
    true: float
    """The share of errors among them."""
    words: int


def fit(logits: np.ndarray, true: np.ndarray) -> Calibration:
    """The likeliest temperature and shift, by Newton's method: the loss is convex in 1 / temperature and the shift."""
    is_there = np.isfinite(logits)
    x, y = logits[is_there].astype(np.float64), true[is_there].astype(np.float64)
    if not 0 < y.sum() < len(y):
        raise ValueError(f"{int(y.sum()):,} of {len(y):,} words are errors: both kinds are needed to calibrate")
    inputs, weights = np.stack([x, np.ones_like(x)], 1), np.array([1.0, np.log(y.mean() / (1 - y.mean()))])
    centre = np.array([1.0, 0.0])
    for _ in range(_ROUNDS):
        p = sigmoid(inputs @ weights)
        slope = inputs.T @ (p - y) + _PRIOR * (weights - centre)
        curve = (inputs * (p * (1 - p))[:, None]).T @ inputs + _PRIOR * np.eye(2)
        step = np.linalg.solve(curve, slope)
        weights = weights - step / max(1.0, float(np.abs(step).max()))  # Newton's far from its end may go too far
        if np.abs(step).max() < 1e-10:
            break
    if weights[0] <= 0:
        raise ValueError("the higher a logit here, the fewer errors: there is nothing to calibrate")
    return Calibration(1 / float(weights[0]), float(weights[1]))


def reliability(probabilities: np.ndarray, true: np.ndarray, bins: int = 10) -> list[Bin]:
    """Bins of equal width that are not empty."""
    numbers = np.minimum((probabilities * bins).astype(int), bins - 1)
    inside = [numbers == number for number in range(bins)]
    return [
        Bin(float(probabilities[here].mean()), float(true[here].mean()), int(here.sum()))
        for here in inside
        if here.any()
    ]


def calibration_error(found: Sequence[Bin]) -> float:
    """The expected one: how far probabilities and shares are apart, over words."""
    total = sum(part.words for part in found)
    return sum(part.words * abs(part.predicted - part.true) for part in found) / total


def log_loss(probabilities: np.ndarray, true: np.ndarray) -> float:
    """The mean, in nats; no probability is taken for certain."""
    sure = np.clip(np.where(true, probabilities, 1 - probabilities), 1e-12, 1)
    return float(-np.log(sure).mean())


def brier(probabilities: np.ndarray, true: np.ndarray) -> float:
    return float(np.square(probabilities - true).mean())


def save(calibration: Calibration, folder: Path, source: str) -> Path:
    write_json(folder / FILE, sealed(asdict(calibration) | {_SOURCE: source}))
    return folder / FILE


def load(folder: Path) -> Calibration | None:
    """What was fitted for the model in a folder, if it was."""
    path = folder / FILE
    if not path.exists():
        return None
    values = fields_of(unsealed(read_json(path), path), (*_NUMBERS, _LEAD, _SOURCE), path)
    return Calibration(**{name: float(values[name]) for name in _NUMBERS}, lead=str(values[_LEAD]))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))
