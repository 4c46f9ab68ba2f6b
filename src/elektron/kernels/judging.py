"""The discriminator's last step: from features to a score for each token, the loss of all and the counts to report.

    score = w . h + b
    loss  = sum of max(score, 0) - score * replaced + log(1 + exp(-|score|))        (BCE of the logits)
    dloss / dscore = sigmoid(score) - replaced

Shapes in comments: N tokens, D width, P programs.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.kernels.gpu import gradient, runs_on, tl, triton

_SUMS = 8  # places for the loss and the counts of a program, padded
_BLOCK = 128  # partial sums added at a time


class Judged(NamedTuple):
    """What the discriminator says."""

    scores: Tensor  # [N] the logits of "replaced", without gradient
    loss: Tensor  # [] their sum, in float32
    tallies: Tensor  # [5] float64: the loss, the number judged rightly, flagged, replaced, both


def judge(hidden: Tensor, weight: Tensor, bias: Tensor, replaced: Tensor) -> Judged:
    """Scores of features [..., D] by `weight` [1, D] and `bias` [1], and how they agree with `replaced` [...]. Only the
    loss carries a gradient."""
    if runs_on(hidden) and hidden.shape[-1] <= 8192:
        return Judged(*_Judged.apply(hidden, weight, bias, replaced))
    return plainly_judged(hidden, weight, bias, replaced)


def plainly_judged(hidden: Tensor, weight: Tensor, bias: Tensor, replaced: Tensor) -> Judged:
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    scores = F.linear(hidden.to(dtype), weight.to(dtype), bias.to(dtype)).squeeze(-1)
    loss = F.binary_cross_entropy_with_logits(scores, replaced.to(scores.dtype), reduction="sum")
    scores = scores.detach()
    flagged = scores > 0
    counts = torch.stack([flagged == replaced, flagged, replaced, flagged & replaced]).flatten(1).sum(1)
    return Judged(scores, loss, torch.cat([loss.detach()[None].double(), counts.double()]))


class _Judged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, replaced: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden, replaced = hidden.contiguous(), replaced.contiguous()
        tile = _tile(hidden)
        count = replaced.numel()
        programs = triton.cdiv(count, tile["R"])
        scores = torch.empty(replaced.shape, device=hidden.device)
        partials = torch.empty(programs, _SUMS, device=hidden.device)
        loss = torch.empty((), device=hidden.device)
        tallies = torch.empty(5, dtype=torch.float64, device=hidden.device)
        _judge_kernel[(programs,)](
            hidden, weight, bias, replaced, scores, partials, count, **tile, SUMS=_SUMS, num_warps=4
        )
        _tally_kernel[(1,)](partials, loss, tallies, P=programs, SUMS=_SUMS, BLOCK=_BLOCK, num_warps=4)
        ctx.save_for_backward(hidden, weight, bias, replaced, scores)
        ctx.mark_non_differentiable(scores, tallies)
        return scores, loss, tallies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, replaced, scores = ctx.saved_tensors
        tile = _tile(hidden)
        count, width = replaced.numel(), hidden.shape[-1]
        programs = triton.cdiv(count, tile["R"])
        d_hidden = torch.empty_like(hidden)
        partials = torch.empty(programs, width + 1, device=hidden.device)  # the bias's is the last
        _unjudge_kernel[(programs,)](
            hidden, weight, replaced, scores, gradients[1], d_hidden, partials, count, **tile, num_warps=4
        )
        _total_kernel[(triton.cdiv(width + 1, 32),)](
            partials, gradient(weight), gradient(bias), P=programs, D=width, C=32, BLOCK=_BLOCK, num_warps=4
        )
        return d_hidden, None, None, None


def _tile(lines: Tensor) -> dict[str, int]:
    """R lines of D elements, padded to C, for one program to hold."""
    width = lines.shape[-1]
    columns = triton.next_power_of_2(width)
    return {"D": width, "C": columns, "R": max(1, min(64, 8192 // columns))}


@triton.jit
def _judge_kernel(
    hidden, weight, bias, replaced, scores, partials, count,
    D: tl.constexpr, C: tl.constexpr, R: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    lines = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, C)
    inside = lines < count
    at = lines.to(tl.int64)[:, None] * D + columns
    h = tl.load(hidden + at, inside[:, None] & (columns < D)[None, :], 0).to(tl.float32)
    w = tl.load(weight + columns, columns < D, 0).to(tl.float32)
    score = tl.sum(h * w, 1) + tl.load(bias).to(tl.float32)
    tl.store(scores + lines, score, inside)

    wrong = tl.load(replaced + lines, inside, 0) != 0
    flagged = score > 0
    loss = tl.maximum(score, 0.0) - tl.where(wrong, score, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(score)))
    sums = partials + tl.program_id(0) * SUMS
    tl.store(sums, tl.sum(tl.where(inside, loss, 0.0), 0))
    tl.store(sums + 1, tl.sum((inside & (flagged == wrong)).to(tl.float32), 0))
    tl.store(sums + 2, tl.sum((inside & flagged).to(tl.float32), 0))
    tl.store(sums + 3, tl.sum(wrong.to(tl.float32), 0))
    tl.store(sums + 4, tl.sum((flagged & wrong).to(tl.float32), 0))


@triton.jit
def _tally_kernel(partials, loss, tallies, P: tl.constexpr, SUMS: tl.constexpr, BLOCK: tl.constexpr):
    which = tl.arange(0, SUMS)
    sums = tl.zeros([BLOCK, SUMS], tl.float64)
    for start in range(0, P, BLOCK):
        part = (start + tl.arange(0, BLOCK))[:, None]
        sums += tl.load(partials + part * SUMS + which, (part < P) & (which < 5)[None, :], 0)
    total = tl.sum(sums, 0)
    tl.store(tallies + which, total, which < 5)
    tl.store(loss + which, total.to(tl.float32), which < 1)


@triton.jit
def _unjudge_kernel(
    hidden, weight, replaced, scores, d_loss, d_hidden, partials, count,
    D: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    lines = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, C)
    inside = lines < count
    here = inside[:, None] & (columns < D)[None, :]
    at = lines.to(tl.int64)[:, None] * D + columns
    wrong = tl.load(replaced + lines, inside, 0) != 0
    d = tl.sigmoid(tl.load(scores + lines, inside, 0)) - wrong.to(tl.float32)
    d = tl.where(inside, d * tl.load(d_loss), 0.0)
    w = tl.load(weight + columns, columns < D, 0).to(tl.float32)
    h = tl.load(hidden + at, here, 0).to(tl.float32)
    tl.store(d_hidden + at, (d[:, None] * w).to(d_hidden.dtype.element_ty), here)
    sums = partials + tl.program_id(0).to(tl.int64) * (D + 1)
    tl.store(sums + columns, tl.sum(d[:, None] * h, 0), columns < D)
    tl.store(sums + D, tl.sum(d, 0))


@triton.jit
def _total_kernel(partials, d_weight, d_bias, P: tl.constexpr, D: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.program_id(0) * C + tl.arange(0, C)
    sums = tl.zeros([BLOCK, C], tl.float32)
    for start in range(0, P, BLOCK):
        part = (start + tl.arange(0, BLOCK))[:, None]
        sums += tl.load(partials + part.to(tl.int64) * (D + 1) + columns, (part < P) & (columns <= D)[None, :], 0)
    total = tl.sum(sums, 0)
    tl.store(d_weight + columns, tl.load(d_weight + columns, columns < D, 0) + total, columns < D)
    tl.store(d_bias + columns - D, tl.load(d_bias + columns - D, columns == D, 0) + total, columns == D)
