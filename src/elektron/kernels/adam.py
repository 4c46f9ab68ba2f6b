"""AdamW over flat buffers in one pass: clip, both moments, decay, the step, and the copy that products read.

    g      = gradient * clip / max(norm, clip)
    first  = b1 * first + (1 - b1) * g;      second = b2 * second + (1 - b2) * g^2
    value -= rate * scale * (first / (1 - b1^t) / (sqrt(second / (1 - b2^t)) + epsilon) + decay * value)
    copy   = value in bfloat16

A parameter may have a scale of its own for the learning rate. Where kernels do not run, torch's own AdamW serves
(train/optimizer.py). 30 bytes of memory traffic a parameter.
"""

import math

from torch import Tensor

from elektron.kernels.gpu import tl, triton

ALIGNMENT = 128
"""Elements; each parameter begins at a multiple, so that kernels read it in whole vectors and its scale once."""
_BLOCK = 4096


def adamw_(
    values: Tensor,
    copies: Tensor,
    gradients: Tensor,
    first: Tensor,
    second: Tensor,
    decayed: int,
    updates: Tensor,
    norm: Tensor,
    rate: Tensor,
    scales: Tensor | None = None,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    clip_norm: float,
    skips: bool = False,
) -> None:
    """Flat buffers, of which the first `decayed` elements are decayed. `updates` is t, this one counted; `norm` that of
    all gradients; `scales` has what the rate is multiplied by for each ALIGNMENT elements. A `clip_norm` of 0 clips
    nothing. With `skips`, nothing changes where the norm is not finite."""
    count = len(values)
    _adamw_kernel[(triton.cdiv(count, _BLOCK),)](
        *(values, copies, gradients, first, second, updates, norm, rate, norm if scales is None else scales),
        *(count, decayed, clip_norm),
        *(beta1, beta2, math.log(beta1) if beta1 else -1e9, math.log(beta2) if beta2 else -1e9),
        *(epsilon, weight_decay),
        CLIPS=clip_norm > 0,
        SCALES=scales is not None,
        SKIPS=skips,
        ALIGNED=ALIGNMENT,
        BLOCK=_BLOCK,
        num_warps=8,
    )


@triton.jit
def _adamw_kernel(
    values, copies, gradients, first, second, updates, norm, rate, scales, count, decayed, clip_norm,
    beta1, beta2, log_beta1, log_beta2, epsilon, weight_decay,
    CLIPS: tl.constexpr, SCALES: tl.constexpr, SKIPS: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if SKIPS:
        count = tl.where(tl.load(norm) < float("inf"), count, 0)  # what is not a number is not below anything
    inside = at < count
    g = tl.load(gradients + at, inside, 0.0)
    if CLIPS:
        g *= clip_norm / tl.maximum(tl.load(norm), clip_norm)
    t = tl.load(updates).to(tl.float64)  # 1 - b2^t is a small difference of large numbers at the start
    correction1 = (1.0 - tl.exp(t * log_beta1)).to(tl.float32)
    correction2 = (1.0 - tl.exp(t * log_beta2)).to(tl.float32)
    m = beta1 * tl.load(first + at, inside, 0.0) + (1.0 - beta1) * g
    v = beta2 * tl.load(second + at, inside, 0.0) + (1.0 - beta2) * g * g
    value = tl.load(values + at, inside, 0.0)
    change = m / correction1 / (tl.sqrt(v / correction2) + epsilon)
    change += tl.where(at < decayed, weight_decay, 0.0) * value
    if SCALES:
        change *= tl.load(scales + at // ALIGNED, inside, 0.0)
    value -= tl.load(rate) * change
    tl.store(first + at, m, inside)
    tl.store(second + at, v, inside)
    tl.store(values + at, value, inside)
    tl.store(copies + at, value.to(copies.dtype.element_ty), inside)
