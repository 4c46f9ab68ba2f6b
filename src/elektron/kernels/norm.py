"""The end of a sub-layer: its output is dropped out, added to its input, and normed.

    s    = x + dropout(y + bias)
    unit = (s - mean(s)) / sqrt(variance(s) + epsilon)          over the D elements of a token
    out  = unit * gain + shift

and back, from the gradient g of `out`, which may come as two terms:

    ds = (g * gain - mean(g * gain) - unit * mean(g * gain * unit)) / sqrt(variance(s) + epsilon)
    dy = dropout's share of ds

The sums over all tokens (of g * unit, g and dy: the gradients of gain, shift and bias) are left as partial sums, one
for each program, to be added up for all layers at once and always in the same order.

Shapes in comments: M tokens (B rows of T), D width, P programs.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from elektron.kernels.counters import keep_scales, token_dropout
from elektron.kernels.gpu import PROCESSORS, tl, triton

_PROGRAMS = 2 * PROCESSORS
"""Of the backward pass, which go over the tokens in turn."""


class Normed(NamedTuple):
    """What the end of a sub-layer gives, and what its backward pass needs."""

    out: Tensor  # [M, D]
    unit: Tensor  # [M, D]
    scale: Tensor  # [M] float32: one over the deviation


def add_norm(
    x: Tensor,
    y: Tensor,
    bias: Tensor,
    gain: Tensor,
    shift: Tensor,
    epsilon: float,
    length: int,
    rate: float,
    keys: Tensor | None,
) -> Normed:
    """x and y are [M, D]; `keys` [B] are the rows' noise, None to drop nothing."""
    tokens, width = x.shape
    found = Normed(torch.empty_like(x), torch.empty_like(x), torch.empty(tokens, device=x.device))
    block, at_once = _tiling(width)
    _add_norm_kernel[(triton.cdiv(tokens, at_once),)](
        *(x, y, bias, gain, shift, *found, x if keys is None else keys, tokens, length, epsilon),
        **token_dropout(rate, keys),
        WIDTH=width,
        BLOCK=block,
        ROWS=at_once,
        num_warps=4,
    )
    return found


def add_norm_backward(
    gradient: Tensor,
    other: Tensor | None,
    normed: Normed,
    gain: Tensor,
    length: int,
    rate: float,
    keys: Tensor | None,
    sums: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of y [M, D], from `gradient` and, if there is one, the `other` term of it. `sums` [P, 3D]
    gets the partial sums of gain, shift and bias."""
    tokens, width = gradient.shape
    block, at_once = _tiling(width)
    residual = torch.empty_like(gradient)
    branch = residual if keys is None or rate == 0 else torch.empty_like(gradient)
    _add_norm_backward_kernel[(len(sums),)](
        *(gradient, gradient if other is None else other, normed.unit, normed.scale, gain, residual, branch, sums),
        *(gradient if keys is None else keys, tokens, length, triton.cdiv(tokens, at_once * len(sums))),
        **token_dropout(rate, keys),
        HAS_OTHER=other is not None,
        WIDTH=width,
        BLOCK=block,
        ROWS=at_once,
        num_warps=2 if block <= 256 else 4,
    )
    return residual, branch


def norm_programs(tokens: int, width: int) -> int:
    """P: programs that go over so many tokens in a backward pass, each with sums of its own."""
    return min(_PROGRAMS, triton.cdiv(tokens, _tiling(width)[1]))


def _tiling(width: int) -> tuple[int, int]:
    """Columns, and tokens at once, of a program."""
    block = triton.next_power_of_2(width)
    return block, max(1, 2048 // block)


@triton.jit
def _add_norm_kernel(
    x,
    y,
    bias,
    gain,
    shift,
    out,
    unit,
    scale,
    keys,
    count,
    length,
    epsilon,
    DROPS: tl.constexpr,
    LIMIT: tl.constexpr,
    KEPT_SCALE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    tokens = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (tokens < count)[:, None] & (columns < WIDTH)[None, :]
    places = tokens.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    added = tl.load(y + places, inside, 0.0).to(tl.float32)
    added += tl.load(bias + columns, columns < WIDTH, 0.0).to(tl.float32)[None, :]
    if DROPS:
        added *= keep_scales(keys, tl.minimum(tokens, count - 1), columns, length, WIDTH, LIMIT, KEPT_SCALE)
    total = tl.load(x + places, inside, 0.0).to(tl.float32) + added
    centred = total - tl.sum(total, 1)[:, None] / WIDTH
    centred = tl.where(inside, centred, 0.0)
    scales = tl.rsqrt(tl.sum(centred * centred, 1) / WIDTH + epsilon)
    normal = centred * scales[:, None]
    result = normal * tl.load(gain + columns, columns < WIDTH, 0.0)[None, :]
    result += tl.load(shift + columns, columns < WIDTH, 0.0)[None, :]
    tl.store(out + places, result.to(out.dtype.element_ty), inside)
    tl.store(unit + places, normal.to(unit.dtype.element_ty), inside)
    tl.store(scale + tokens, scales, tokens < count)


@triton.jit
def _add_norm_backward_kernel(
    gradient,
    other,
    unit,
    scale,
    gain,
    residual,
    branch,
    sums,
    keys,
    count,
    length,
    turns,
    DROPS: tl.constexpr,
    LIMIT: tl.constexpr,
    KEPT_SCALE: tl.constexpr,
    HAS_OTHER: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    gains = tl.load(gain + columns, columns < WIDTH, 0.0)
    of_gain = tl.zeros((ROWS, BLOCK), tl.float32)  # summed over the rows at the end, which threads share
    of_shift = tl.zeros((ROWS, BLOCK), tl.float32)
    of_bias = tl.zeros((ROWS, BLOCK), tl.float32)
    for turn in tl.range(turns, num_stages=3):
        tokens = (turn * tl.num_programs(0) + tl.program_id(0)) * ROWS + tl.arange(0, ROWS)
        inside = (tokens < count)[:, None] & (columns < WIDTH)[None, :]
        places = tokens.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        given = tl.load(gradient + places, inside, 0.0).to(tl.float32)
        if HAS_OTHER:
            given += tl.load(other + places, inside, 0.0).to(tl.float32)
        normal = tl.load(unit + places, inside, 0.0).to(tl.float32)
        scales = tl.load(scale + tokens, tokens < count, 0.0)
        gained = given * gains[None, :]
        mean = tl.sum(gained, 1) / WIDTH
        slope = tl.sum(gained * normal, 1) / WIDTH
        result = (gained - mean[:, None] - normal * slope[:, None]) * scales[:, None]
        tl.store(residual + places, result.to(residual.dtype.element_ty), inside)
        if DROPS:
            result *= keep_scales(keys, tl.minimum(tokens, count - 1), columns, length, WIDTH, LIMIT, KEPT_SCALE)
            tl.store(branch + places, result.to(branch.dtype.element_ty), inside)
        of_gain += given * normal
        of_shift += given
        of_bias += tl.where(inside, result, 0.0)
    sums += tl.program_id(0) * 3 * WIDTH + columns
    tl.store(sums, tl.sum(of_gain, 0), columns < WIDTH)
    tl.store(sums + WIDTH, tl.sum(of_shift, 0), columns < WIDTH)
    tl.store(sums + 2 * WIDTH, tl.sum(of_bias, 0), columns < WIDTH)
