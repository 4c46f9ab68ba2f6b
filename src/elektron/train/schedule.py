"""The learning rate as a function of the step, and the phases a run goes through."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over a run."""

    kind: Literal["linear", "product", "cosine", "wsd"] = "linear"
    """After the warm-up: linear to zero; a half cosine to zero; or wsd, stable and then linear to zero at the end.
    'product' is the original's: a warm-up times a linear decay, both from step 0."""
    learning_rate: float = 5e-4
    """The peak."""
    warmup_steps: int = 10_000
    """Steps in which the learning rate rises to its peak."""
    decay_share: float = 0.2
    """Share of the run that wsd decays in."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise ValueError(f"--schedule.learning-rate must be positive, not {self.learning_rate}")
        if self.warmup_steps < 0:
            raise ValueError(f"--schedule.warmup-steps cannot be negative: {self.warmup_steps}")
        if not 0 < self.decay_share <= 1:
            raise ValueError(f"--schedule.decay-share lies in (0, 1], not {self.decay_share}")


def learning_rate(config: ScheduleConfig, step: int, total: int) -> float:
    """The rate of the update that makes step `step` (from 0) of `total`."""
    if config.kind == "product":
        warm = min(1.0, step / config.warmup_steps) if config.warmup_steps else 1.0
        return config.learning_rate * warm * (1.0 - step / total)
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    left = (total - step) / max(1, total - config.warmup_steps)  # 1 after the warm-up, towards 0 at the end
    if config.kind == "linear":
        return config.learning_rate * left
    if config.kind == "cosine":
        return config.learning_rate * 0.5 * (1.0 - math.cos(math.pi * left))
    return config.learning_rate * min(1.0, (total - step) / max(1.0, config.decay_share * total))


class Phase(NamedTuple):
    """A stretch of a run with rows of one length and batches of one size."""

    steps: int
    length: int
    rows: int


def phase_at(phases: tuple[Phase, ...], step: int) -> tuple[int, int]:
    """The number of the phase that `step` is in, and the step within it."""
    for number, phase in enumerate(phases):
        if step < phase.steps:
            return number, step
        step -= phase.steps
    raise AssertionError(f"step {step} lies past the last phase of {phases}")


SHORTER = (2, 4, 8)
"""How many times as short the rows of short steps are, in turn."""


class Cut(NamedTuple):
    """What the rows of a step are like: so many `times` as short as its phase's, and as many more."""

    times: int
    step: int
    """Its number among the steps of such rows."""


def cut_at(short: float, step: int) -> Cut:
    """Of step number `step` of a phase that has a share of `short` steps, spread evenly."""
    before = int(short * step)
    if int(short * (step + 1)) == before:
        return Cut(1, step - before)
    turn, which = divmod(before, len(SHORTER))
    return Cut(SHORTER[which], turn)


def with_short(phases: tuple[Phase, ...], short: float) -> tuple[Phase, ...]:
    """The phases, with their short steps as phases of their own: what they cost, not when they come."""
    parts = []
    for steps, length, rows in phases:
        count = int(short * steps)
        shorts = [(count + len(SHORTER) - 1 - n) // len(SHORTER) for n in range(len(SHORTER))]
        parts.append(Phase(steps - count, length, rows))
        parts += [Phase(some, length // n, rows * n) for some, n in zip(shorts, SHORTER, strict=True) if some]
    return tuple(parts)


def total_steps(phases: tuple[Phase, ...]) -> int:
    return sum(phase.steps for phase in phases)


def total_tokens(phases: tuple[Phase, ...]) -> int:
    return sum(phase.steps * phase.length * phase.rows for phase in phases)
