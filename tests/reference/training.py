"""Google's optimizer and learning rate, one number at a time (google-research/electra, model/optimization.py)."""

import math


def clipped(gradients: list[list[float]], norm: float) -> list[list[float]]:
    total = math.sqrt(sum(g * g for gradient in gradients for g in gradient))
    scale = norm / max(total, norm)
    return [[g * scale for g in gradient] for gradient in gradients]


def adam_step(
    value: float,
    gradient: float,
    first: float,
    second: float,
    step: int,
    rate: float,
    decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-6,
    bias_correction: bool = False,
) -> tuple[float, float, float]:
    """One number's new (value, first moment, second moment); `step` counts from 1."""
    first = betas[0] * first + (1 - betas[0]) * gradient
    second = betas[1] * second + (1 - betas[1]) * gradient * gradient
    m, v = first, second
    if bias_correction:
        m, v = first / (1 - betas[0] ** step), second / (1 - betas[1] ** step)
    update = m / (math.sqrt(v) + epsilon) + decay * value
    return value - rate * update, first, second


def product_rate(peak: float, step: int, total: int, warmup: int) -> float:
    """Polynomial decay of power 1 to zero, times the warm-up, both from step 0."""
    decayed = peak * (1 - step / total)
    return decayed * min(1.0, step / warmup) if warmup else decayed
