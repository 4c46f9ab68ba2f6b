"""Matrix products. Plain ones are the library's. Those that GELU follows or precedes are here, so that the widest
values of a layer are written once and never read back only to be bent. On GPUs that do not load blocks by themselves
(before Hopper) the library multiplies, and GELU is a second pass.

    a, slope = GELU(u), GELU'(u)   of   u = x W^T + bias               x [M, K], W [N, K]
    du       = (dy W) * slope                                          dy [M, K], W [K, N], slope [M, N]

`linear` and `gelu_linear` are the two with gradients, which for parameters are added in place (kernels/gpu.py).

GELU(u) = u * Phi(u), with the normal distribution Phi as a logistic function of a polynomial: off by at most 3e-5, a
hundredth of what bfloat16 rounds away, in half the instructions of erf.

Shapes in comments: M tokens, K and N widths.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.kernels.gpu import (
    PROCESSORS,
    described,
    exp2,
    gradient,
    has_room,
    inverse,
    loads_blocks,
    runs_on,
    tl,
    triton,
)

_BLOCK_M = 128
_THIN = (32, 64, 128, 256)
"""Widths at which a tile of weights can stay on chip."""
_THIN_M = 64
_AT_ONCE = 4096


class Bent(NamedTuple):
    """GELU of a product, and its derivative there."""

    value: Tensor  # [M, N]
    slope: Tensor  # [M, N]


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x W^T + bias: [..., K] -> [..., N]."""
    if not runs_on(x):
        return F.linear(x, weight, bias)
    out = _Linear.apply(x.contiguous().flatten(0, -2), weight, bias)
    return out.view(*x.shape[:-1], -1)  # pyright: ignore[reportOptionalMemberAccess]


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """GELU(x W^T + bias): [..., K] -> [..., N]."""
    if not (runs_on(x) and fits(*weight.shape) and x.dtype == weight.dtype and x.element_size() == 2 and x.numel()):
        return F.gelu(F.linear(x, weight, bias))
    out = _GeluLinear.apply(x.contiguous().flatten(0, -2), weight, bias)
    return out.view(*x.shape[:-1], -1)  # pyright: ignore[reportOptionalMemberAccess]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _linear_backward(grad, *ctx.saved_tensors), None, None


class _GeluLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        bent = bend(x, weight, bias)
        ctx.save_for_backward(bent.slope, x, weight, bias)
        return bent.value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        slope, *inputs = ctx.saved_tensors
        return _linear_backward(grad * slope, *inputs), None, None


def _linear_backward(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    grad = grad.contiguous()
    add_product(gradient(weight), grad, x)
    gradient(bias).add_(column_sums(grad))
    return grad @ weight


def bend(x: Tensor, weight: Tensor, bias: Tensor) -> Bent:
    (tokens, wide), width = x.shape, len(weight)
    if not loads_blocks(x):
        return _bend_after(torch.addmm(bias, x, weight.t()))
    found = Bent(*torch.empty(2, tokens, width, dtype=x.dtype, device=x.device))
    block, along = _divisor(width, 128), _divisor(wide, 64)
    _bend_kernel[(triton.cdiv(tokens, _BLOCK_M) * (width // block),)](
        *(described(x, [_BLOCK_M, along]), described(weight, [block, along]), bias, *found, tokens),
        K=wide,
        N=width,
        BLOCK_M=_BLOCK_M,
        BLOCK_N=block,
        BLOCK_K=along,
        num_warps=8,
        num_stages=3,
    )
    return found


def _bend_after(u: Tensor) -> Bent:
    """The value takes the place of u."""
    slope = torch.empty_like(u)
    _bend_after_kernel[(triton.cdiv(u.numel(), _AT_ONCE),)](u, slope, u.numel(), BLOCK=_AT_ONCE, num_warps=8)
    return Bent(u, slope)


def unbend(gradient: Tensor, weight: Tensor, slope: Tensor, sums: Tensor) -> Tensor:
    """du [M, N]. `sums` [P, N] gets the partial sums of the bias's gradient, P as `unbend_parts` says."""
    (tokens, wide), width = gradient.shape, weight.shape[1]
    if not loads_blocks(gradient):
        product = gradient @ weight
        _unbend_after_kernel[(len(sums), triton.cdiv(width, 64))](
            product, slope, sums, tokens, width, ROWS=_BLOCK_M, num_warps=4
        )
        return product
    out, block = torch.empty_like(slope), _divisor(width, 128)
    if not _stays(weight):
        tile, along = [_BLOCK_M, block], _divisor(wide, 64)
        _unbend_kernel[(len(sums) * (width // block),)](
            *(described(gradient, [_BLOCK_M, along]), described(weight, [along, block])),
            *(described(slope, tile), described(out, tile), sums),
            K=wide,
            N=width,
            num_warps=4,
            num_stages=3,
        )
        return out
    tile = [_THIN_M, block]
    _unbend_thin_kernel[(len(sums) * (width // block),)](
        *(described(gradient, [_THIN_M, wide]), described(weight, [wide, block]), described(slope, tile)),
        *(out, sums, tokens, triton.cdiv(triton.cdiv(tokens, _THIN_M), len(sums))),
        N=width,
        BLOCK_M=_THIN_M,
        BLOCK_N=block,
        num_warps=8,
    )
    return out


def unbend_parts(weight: Tensor, tokens: int) -> int:
    """P of `unbend`: programs that share the tokens of a tile of columns."""
    if not _stays(weight):
        return row_tiles(tokens)
    width = weight.shape[1]
    return min(max(1, PROCESSORS // (width // _divisor(width, 128))), triton.cdiv(tokens, _THIN_M))


def _stays(weight: Tensor) -> bool:
    """Whether a tile of the columns of a weight [K, N] stays on chip, with three tiles of rows on their way."""
    wide = len(weight)
    return wide in _THIN and loads_blocks(weight) and has_room(weight, (wide * 128 + 3 * _THIN_M * (wide + 128)) >> 9)


def row_tiles(tokens: int) -> int:
    """P: tiles that so many tokens are cut into."""
    return triton.cdiv(tokens, _BLOCK_M)


def column_sums(x: Tensor) -> Tensor:
    """[M, N] -> [N], float32."""
    parts = torch.empty(1, row_tiles(len(x)), x.shape[1], device=x.device)
    partial_sums(x, parts[0])
    return added(parts)[0]


def added(parts: Tensor) -> Tensor:
    """[L, P, N] -> [L, N]: the sums of P parts, in float32."""
    groups, count, width = parts.shape
    out = torch.empty(groups, width, device=parts.device)
    _added_kernel[(groups, triton.cdiv(width, 32))](parts, out, count, N=width, BLOCK=64, num_warps=4)
    return out


def partial_sums(x: Tensor, parts: Tensor) -> None:
    """The sums of x [M, N] over the rows of each of its tiles, into `parts` [P, N]."""
    tokens, width = x.shape
    _sums_kernel[(len(parts), triton.cdiv(width, 64))](x, parts, tokens, width, ROWS=_BLOCK_M, num_warps=4)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a^T b, in float32: how the gradient of a matrix comes together."""
    if total.is_cuda and a.dtype != torch.float32:
        torch.addmm(total, a.t(), b, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(a.float().t(), b.float())


def fits(wide: int, width: int) -> bool:
    """Whether a layer of these widths is cut into whole tiles."""
    return wide % 32 == 0 and width % 32 == 0


def _divisor(width: int, largest: int) -> int:
    while width % largest:
        largest //= 2
    return largest


@triton.jit
def gelu(u):
    """GELU(u) and GELU'(u), float32."""
    z = tl.minimum(u * u, 36.0)
    q = (9.35280816e-04 * z - 1.06247466e-01) * z - 2.30170791e00
    share = inverse(1.0 + exp2(u * q))
    value = u * share
    r = (-3.52152996e-03 * z + 2.22192391e-01) * z + 1.59462036e00
    return value, share + (value - value * share) * r


@triton.jit
def _bend_kernel(
    x, w, bias, value, slope, M, K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The column tiles of a row tile run side by side, and share its x."""
    ACROSS: tl.constexpr = N // BLOCK_N
    row, column = tl.program_id(0) // ACROSS * BLOCK_M, tl.program_id(0) % ACROSS * BLOCK_N
    u = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, K, BLOCK_K):
        u = tl.dot(x.load([row, first]), w.load([column, first]).T, u, input_precision="ieee")
    columns, tile = column + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M)[:, None]
    inside = tile < M - row
    start = row.to(tl.int64)  # far from the beginning, but places within a tile are near each other
    u += tl.load(bias + columns).to(tl.float32)[None, :]
    bent, slopes = gelu(u)
    places = tile * N + columns[None, :]
    tl.store(value + start * N + places, bent.to(value.dtype.element_ty), inside)
    tl.store(slope + start * N + places, slopes.to(slope.dtype.element_ty), inside)


@triton.jit
def _bend_after_kernel(value, slope, count, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    places = tl.arange(0, BLOCK)
    inside = places < count - start
    u = tl.load(value + start + places, inside, 0.0).to(tl.float32)
    bent, slopes = gelu(u)
    tl.store(value + start + places, bent.to(value.dtype.element_ty), inside)
    tl.store(slope + start + places, slopes.to(slope.dtype.element_ty), inside)


@triton.jit
def _unbend_after_kernel(product, slope, sums, M, N, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS
    start = row.to(tl.int64) * N
    tile, columns = tl.arange(0, ROWS)[:, None], tl.program_id(1) * 64 + tl.arange(0, 64)
    inside = (tile < M - row) & (columns < N)[None, :]
    places = tile * N + columns[None, :]
    bent = tl.load(product + start + places, inside, 0.0).to(tl.float32)
    bent *= tl.load(slope + start + places, inside, 0.0).to(tl.float32)
    tl.store(product + start + places, bent.to(product.dtype.element_ty), inside)
    tl.store(sums + tl.program_id(0) * N + columns, tl.sum(bent, 0), columns < N)


@triton.jit
def _unbend_kernel(g, w, slope, out, sums, K: tl.constexpr, N: tl.constexpr):
    """As `_bend_kernel`: one tile of a program. Descriptors leave out what lies behind the last token."""
    BLOCK_M: tl.constexpr = slope.block_shape[0]
    BLOCK_N: tl.constexpr = slope.block_shape[1]
    BLOCK_K: tl.constexpr = w.block_shape[0]
    tile, column = tl.program_id(0) // (N // BLOCK_N), tl.program_id(0) % (N // BLOCK_N) * BLOCK_N
    product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, K, BLOCK_K):
        product = tl.dot(g.load([tile * BLOCK_M, first]), w.load([first, column]), product, input_precision="ieee")
    bent = product * slope.load([tile * BLOCK_M, column]).to(tl.float32)
    out.store([tile * BLOCK_M, column], bent.to(out.dtype))
    tl.store(sums + tile * N + column + tl.arange(0, BLOCK_N), tl.sum(bent, 0))


@triton.jit
def _unbend_thin_kernel(
    g, w, slope, out, sums, M, turns, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A program has one tile of columns, whose weights stay, and every so many tiles of rows."""
    ACROSS: tl.constexpr = N // BLOCK_N
    first, parts = tl.program_id(0) // ACROSS, tl.num_programs(0) // ACROSS
    column = tl.program_id(0) % ACROSS * BLOCK_N
    weights = w.load([0, column])
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    tile, columns = tl.arange(0, BLOCK_M)[:, None], column + tl.arange(0, BLOCK_N)
    for turn in tl.range(turns, num_stages=3):
        row = (turn * parts + first) * BLOCK_M
        bent = slope.load([row, column]).to(tl.float32)
        bent *= tl.dot(g.load([row, 0]), weights, input_precision="ieee")
        places = row.to(tl.int64) * N + (tile * N + columns[None, :])
        tl.store(out + places, bent.to(out.dtype.element_ty), tile < M - row)
        total += bent
    tl.store(sums + first * N + columns, tl.sum(total, 0))


@triton.jit
def _sums_kernel(x, parts, M, N, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * 64 + tl.arange(0, 64)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    values = tl.load(x + rows.to(tl.int64)[:, None] * N + columns[None, :], inside, 0.0).to(tl.float32)
    tl.store(parts + tl.program_id(0) * N + columns, tl.sum(values, 0), columns < N)


@triton.jit
def _added_kernel(parts, out, P, N: tl.constexpr, BLOCK: tl.constexpr):
    group = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * 32 + tl.arange(0, 32)
    total = tl.zeros((BLOCK, 32), tl.float32)
    for start in range(0, P, BLOCK):
        part = start + tl.arange(0, BLOCK)
        inside = (part < P)[:, None] & (columns < N)[None, :]
        total += tl.load(parts + group * P * N + part[:, None] * N + columns[None, :], inside, 0.0)
    tl.store(out + group * N + columns, tl.sum(total, 0), columns < N)
