"""Muon (train/muon.py) over flat buffers, what comes before and behind the orthogonal directions, a pass each:

    momentum = b1 * first + (1 - b1) * gradient * clip / max(norm, clip)    in the precision that directions are made in
    value   -= rate * scale * (direction + decay * value);    copy = value in bfloat16

After AdamW's pass, of whose first moment it makes use. Where kernels do not run, train/optimizer.py does the same by
torch.
"""

import torch
from torch import Tensor

from elektron.kernels.gpu import tl, triton

_BLOCK = 4096


def momenta(
    gradients: Tensor, first: Tensor, norm: Tensor, dtype: torch.dtype, beta1: float, clip_norm: float
) -> Tensor:
    """Nesterov's, of flat buffers; `norm` is that of all gradients. A `clip_norm` of 0 clips nothing."""
    made = torch.empty_like(first, dtype=dtype)
    _momenta_kernel[(triton.cdiv(len(made), _BLOCK),)](
        *(gradients, first, made, norm, len(made), beta1, clip_norm),
        CLIPS=clip_norm > 0,
        BLOCK=_BLOCK,
        num_warps=8,
    )
    return made


def follow_(
    values: Tensor,
    copies: Tensor,
    directions: Tensor,
    norm: Tensor,
    rate: Tensor,
    *,
    scale: float,
    weight_decay: float,
    skips: bool = False,
) -> None:
    """With `skips`, nothing changes where the norm is not finite."""
    _follow_kernel[(triton.cdiv(len(values), _BLOCK),)](
        *(values, copies, directions, norm, rate, len(values), scale, weight_decay),
        SKIPS=skips,
        BLOCK=_BLOCK,
        num_warps=8,
    )


@triton.jit
def _momenta_kernel(
    gradients, first, made, norm, count, beta1, clip_norm, CLIPS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    g = tl.load(gradients + at, inside, 0.0)
    if CLIPS:
        g *= clip_norm / tl.maximum(tl.load(norm), clip_norm)
    momentum = beta1 * tl.load(first + at, inside, 0.0) + (1.0 - beta1) * g
    tl.store(made + at, momentum.to(made.dtype.element_ty), inside)


@triton.jit
def _follow_kernel(
    values, copies, directions, norm, rate, count, scale, weight_decay, SKIPS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if SKIPS:
        count = tl.where(tl.load(norm) < float("inf"), count, 0)  # what is not a number is not below anything
    inside = at < count
    value = tl.load(values + at, inside, 0.0)
    change = tl.load(directions + at, inside, 0.0).to(tl.float32) + weight_decay * value
    value -= tl.load(rate) * scale * change
    tl.store(values + at, value, inside)
    tl.store(copies + at, value.to(copies.dtype.element_ty), inside)
