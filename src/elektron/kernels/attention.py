"""Attention of every token of a row to every token it may see, with dropout of the probabilities.

For each row and head, with queries q, keys k and values v [T, d], and bits m that are 1 where dropout keeps an element:

    S = q k^T / sqrt(d),  S[:, j] = -inf where key j is not to be seen
    P = softmax(S),  O = (m P / (1 - rate)) v

A row whose keys are all hidden gives zeros. Backward needs only L = logsumexp(S) beside O, and computes P again:

    D  = rowsum(dO O)
    dS = P (m (dO v^T) / (1 - rate) - D) / sqrt(d)
    dv = (m P / (1 - rate))^T dO,  dq = dS k,  dk = dS^T q

One random word serves two columns that lie half a row apart (see `kept`), so a kernel meets the keys in pairs of
blocks, one from each half of the row. A row of up to 128 tokens is one pair: its scores stay in registers, and one
program has the whole backward of a head. Longer rows go pair by pair (Dao, 2023, arXiv 2307.08691). Nothing is added up
across programs, so results repeat bit for bit.

Shapes in comments: B rows, T tokens of a row, H heads, d width of a head.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.kernels.counters import folded, half, kept, mixed, threshold
from elektron.kernels.gpu import LOG2E, has_room, runs_on, tl, triton
from elektron.kernels.products import partial_sums, row_tiles

_SHORT = 128
"""The longest row that is one pair of blocks."""
_WIDTHS = (16, 32, 64, 128)


def attention(qkv: Tensor, heads: int, mask: Tensor | None, rate: float, keys: Tensor | None) -> Tensor:
    """[B, T, 3 * H * d] -> [B, T, H * d]. The last dimension of `qkv` is ordered (3, H, d); `mask` [B, T] is True
    where a key may be seen, None when all may; `keys` [B] are the rows' noise, None when nothing is to be dropped."""
    if runs_on(qkv) and fits(qkv, qkv.shape[-1] // (3 * heads)):
        return _Attention.apply(qkv.contiguous(), heads, mask, rate, keys)  # pyright: ignore[reportReturnType]
    return plain_attention(qkv, heads, mask, rate, keys)


def plain_attention(qkv: Tensor, heads: int, mask: Tensor | None, rate: float, keys: Tensor | None) -> Tensor:
    rows, length, _ = qkv.shape
    q, k, v = qkv.view(rows, length, 3, heads, -1).permute(2, 0, 3, 1, 4)  # [B, H, T, d] each
    alive = None if mask is None else mask.any(-1)[:, None, None]  # [B, 1, 1]
    if mask is not None and alive is not None:
        mask = (mask[:, None] | ~alive)[:, None]  # [B, 1, 1, T]: no softmax over nothing, which would be nan
    if keys is None or rate == 0:
        out = F.scaled_dot_product_attention(q, k, v, mask)
    else:
        scores = q / math.sqrt(q.shape[-1]) @ k.transpose(-1, -2)  # [B, H, T, T]
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        probabilities = scores.softmax(-1).to(v.dtype)
        out = probabilities * kept(probabilities.shape, rate, keys, v.dtype) @ v / (1.0 - rate)
    out = out.transpose(1, 2).reshape(rows, length, -1)
    return out if alive is None else out * alive


def fits(x: Tensor, head_width: int) -> bool:
    """Whether the kernels take it: tensor cores want 16 bits and a power of two."""
    if x.dtype not in (torch.bfloat16, torch.float16) or head_width not in _WIDTHS or x.numel() == 0:
        return False
    return head_width <= 64 or x.shape[1] <= _SHORT or has_room(x, 160)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, mask: Tensor | None, rate: float, keys: Tensor | None) -> Tensor:
        out, lse = attention_forward(qkv, heads, mask, rate, keys)
        ctx.save_for_backward(qkv, out, lse, mask, keys)
        ctx.heads, ctx.rate = heads, rate
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        qkv, out, lse, mask, keys = ctx.saved_tensors
        sums = torch.empty(sum_parts(*qkv.shape[:2]), qkv.shape[2], device=qkv.device)
        dqkv = attention_backward(grads[0].contiguous(), qkv, out, lse, ctx.heads, mask, ctx.rate, keys, sums)
        return dqkv, None, None, None, None


def attention_forward(
    qkv: Tensor, heads: int, mask: Tensor | None, rate: float, keys: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`attention` by the kernel, and L [B, H, T] in float32 for the backward pass: inf where nothing is to be seen,
    so that exp(S - L) is 0 there."""
    rows, length, width = qkv.shape
    out = torch.empty(rows, length, width // 3, dtype=qkv.dtype, device=qkv.device)
    lse = torch.empty(rows, heads, length, dtype=torch.float32, device=qkv.device)
    task, tiles = _task(qkv, heads, mask, rate, keys), _forward_tiles(length)
    grid = (rows * heads * triton.cdiv(length, tiles["BLOCK_M"]),)
    _forward_kernel[grid](qkv, out, lse, **task, **tiles)
    return out, lse


def attention_backward(
    dout: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    heads: int,
    mask: Tensor | None,
    rate: float,
    keys: Tensor | None,
    sums: Tensor,
) -> Tensor:
    """The gradient of `qkv`, from that of `attention`'s result and what `attention_forward` gave. `sums` [P, 3 H d],
    in float32, gets its sums over tokens in parts: the gradient of the bias that went into `qkv`."""
    rows, length, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // (3 * heads)
    dqkv, task = torch.empty_like(qkv), _task(qkv, heads, mask, rate, keys)
    if length <= _SHORT:
        tiles = _backward_tiles(length, width, rows * heads)
        _backward_kernel[(rows * heads,)](qkv, out, lse, dout, dqkv, sums, **task, **tiles)
        return dqkv
    delta = torch.empty_like(lse)
    tiles = _query_tiles(length)
    grid = (rows * heads * triton.cdiv(length, tiles["BLOCK_M"]),)
    _backward_queries_kernel[grid](qkv, out, lse, dout, delta, dqkv, **task, **tiles)
    tiles = _key_tiles(length, width)
    _backward_keys_kernel[(rows * heads * tiles["PAIRS"],)](qkv, lse, dout, delta, dqkv, **task, **tiles)
    partial_sums(dqkv.flatten(0, 1), sums)
    return dqkv


def sum_parts(rows: int, length: int) -> int:
    """P of the backward pass."""
    return rows if length <= _SHORT else row_tiles(rows * length)


def _task(qkv: Tensor, heads: int, mask: Tensor | None, rate: float, keys: Tensor | None) -> dict[str, Any]:
    """What every kernel is told."""
    keys = None if keys is None or rate == 0 else keys.contiguous()
    width = qkv.shape[-1] // (3 * heads)
    return {
        "mask": None if mask is None else mask.contiguous().view(torch.uint8),
        "keys": keys,
        "T": qkv.shape[1],
        "H": heads,
        "D": width,
        "LIMIT": 0 if keys is None else threshold(rate),
        "GROWN": 1.0 if keys is None else 1.0 / (1.0 - rate),
        "SCALE": 1.0 / math.sqrt(width),
    }


def _forward_tiles(length: int) -> dict[str, int]:
    queries, warps = (128, 8) if 64 < length <= _SHORT else (64, 4)
    return _tiles(length, queries, warps, stages=2)


def _backward_tiles(length: int, width: int, programs: int) -> dict[str, int]:
    """With 4 warps, two programs share a multiprocessor; where there are too few of them, one has it to itself, and so
    have wide heads. Eight warps share the work only from 128 queries on."""
    if length <= 64:
        return _tiles(length, queries=64, warps=4, stages=1)
    return _tiles(length, queries=_SHORT, warps=4 if programs > 256 and width <= 64 else 8, stages=1)


def _query_tiles(length: int) -> dict[str, int]:
    return _tiles(length, queries=64, warps=4, stages=2)


def _key_tiles(length: int, width: int) -> dict[str, int]:
    """The sums for wide heads need the registers of 8 warps."""
    queries, warps = (64, 4) if width <= 64 else (128, 8)
    return _tiles(length, queries, warps, stages=1)


def _tiles(length: int, queries: int, warps: int, stages: int) -> dict[str, int]:
    """A launch: blocks of that many queries, and of keys, of which two make a pair."""
    keys = min(_SHORT // 2, max(16, triton.next_power_of_2(half(length))))
    return {
        "BLOCK_M": queries,
        "BLOCK_N": keys,
        "PAIRS": triton.cdiv(length, 2 * keys),
        "EVEN": length % (2 * keys) == 0 and length % queries == 0,
        "num_warps": warps,
        "num_stages": stages,
    }


# In the kernels: qkv [B, T, 3, H, D]; out, dout [B, T, H, D]; lse, delta [B, H, T]; mask [B, T] uint8; keys [B].
# A pair of blocks has columns c and c + half, for BLOCK_N words c; its tensors end in 1 and 2. PAIRS make a row; EVEN
# says that blocks end where it does. LIMIT is the threshold of dropout, GROWN 1 / (1 - rate), SCALE 1 / sqrt(d): all
# constants, because arguments would be loaded again for each element.


@triton.jit
def _loaded(base, rows, end, stride, D: tl.constexpr, EVEN: tl.constexpr):
    places = base + rows[:, None] * stride + tl.arange(0, D)[None, :]
    if EVEN:
        tile = tl.load(places)
    else:
        tile = tl.load(places, rows[:, None] < end, 0.0)
    return tile


@triton.jit
def _store(base, rows, end, stride, tile, D: tl.constexpr, EVEN: tl.constexpr):
    places = base + rows[:, None] * stride + tl.arange(0, D)[None, :]
    if EVEN:
        tl.store(places, tile.to(base.dtype.element_ty))
    else:
        tl.store(places, tile.to(base.dtype.element_ty), rows[:, None] < end)


@triton.jit
def _shown(x1, x2, hidden: tl.constexpr, mask, b, columns, T, EVEN: tl.constexpr):
    """The pair with `hidden` in the columns that are not to be seen."""
    middle = (T + 1) // 2
    seen1, seen2 = columns < middle, columns < T - middle
    if mask is not None:
        row = mask + b.to(tl.int64) * T
        seen1 = tl.load(row + columns, seen1, 0) != 0
        seen2 = tl.load(row + middle + columns, seen2, 0) != 0
    if mask is not None or not EVEN:
        x1, x2 = tl.where(seen1[None, :], x1, hidden), tl.where(seen2[None, :], x2, hidden)
    return x1, x2


@triton.jit
def _signed(p1, p2, keys, b, h, rows, columns, T, LIMIT: tl.constexpr):
    """The pair with a minus sign where dropout takes an element (`kept` of counters.py): one register, two facts."""
    if keys is not None:
        lines = folded(tl.load(keys + b).to(tl.uint32, bitcast=True), (h * T + rows).to(tl.uint32))
        words = mixed(lines[:, None] ^ mixed(columns.to(tl.uint32))[None, :])
        # -p, and not p * -1.0: LLVM would see through that, and undo the trick by keeping |p|, the sign and max(p, 0)
        p1 = tl.where((words << 16).to(tl.int32, bitcast=True) >= LIMIT, p1, -p1)
        p2 = tl.where(words.to(tl.int32, bitcast=True) >= LIMIT, p2, -p2)
    return p1, p2


@triton.jit
def _forward_kernel(
    qkv, out, lse, mask, keys, T, H: tl.constexpr, D: tl.constexpr,
    LIMIT: tl.constexpr, GROWN: tl.constexpr, SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(T, BLOCK_M)
    rows = (tl.program_id(0) % blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    head = tl.program_id(0) // blocks
    b, h = head // H, head % H
    middle = (T + 1) // 2
    stride: tl.constexpr = 3 * H * D
    slope: tl.constexpr = SCALE * LOG2E  # exp2 is the hardware's own
    qkv += b.to(tl.int64) * T * stride + h * D
    q = _loaded(qkv, rows, T, stride, D, EVEN)
    top = tl.full([BLOCK_M], -1e30, tl.float32)  # finite: a row with nothing to see gets exp2(-inf), never nan
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    for pair in range(PAIRS):
        columns = pair * BLOCK_N + tl.arange(0, BLOCK_N)
        k1 = _loaded(qkv + H * D, columns, middle, stride, D, EVEN)
        k2 = _loaded(qkv + H * D, columns + middle, T, stride, D, EVEN)
        v1 = _loaded(qkv + 2 * H * D, columns, middle, stride, D, EVEN)
        v2 = _loaded(qkv + 2 * H * D, columns + middle, T, stride, D, EVEN)
        s1 = tl.dot(q, tl.trans(k1), input_precision="ieee")
        s2 = tl.dot(q, tl.trans(k2), input_precision="ieee")
        s1, s2 = _shown(s1, s2, float("-inf"), mask, b, columns, T, EVEN)
        before = top
        top = tl.maximum(top, tl.max(tl.maximum(s1, s2), 1) * slope)
        p1 = tl.exp2(s1 * slope - top[:, None])
        p2 = tl.exp2(s2 * slope - top[:, None])
        if PAIRS == 1:
            total = tl.sum(p1 + p2, 1)
        else:
            shrunk = tl.exp2(before - top)
            total = total * shrunk + tl.sum(p1 + p2, 1)
            acc = acc * shrunk[:, None]
        p1, p2 = _signed(p1, p2, keys, b, h, rows, columns, T, LIMIT)
        acc = tl.dot(tl.maximum(p1, 0.0).to(v1.dtype), v1, acc, input_precision="ieee")
        acc = tl.dot(tl.maximum(p2, 0.0).to(v2.dtype), v2, acc, input_precision="ieee")
    sure = tl.where(total > 0, total, 1.0)
    _store(out + b.to(tl.int64) * T * H * D + h * D, rows, T, H * D, acc * (GROWN / sure)[:, None], D, EVEN)
    logsum = tl.where(total > 0, (top + tl.log2(sure)) * 0.6931471805599453, float("inf"))
    tl.store(lse + head.to(tl.int64) * T + rows, logsum, rows < T)


@triton.jit
def _probabilities(q, k1, k2, rowlse, mask, keys, b, h, rows, columns, T,
    LIMIT: tl.constexpr, SCALE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """P of a pair again, signed."""
    slope: tl.constexpr = SCALE * LOG2E
    p1 = tl.exp2(tl.dot(q, tl.trans(k1), input_precision="ieee") * slope - rowlse[:, None])
    p2 = tl.exp2(tl.dot(q, tl.trans(k2), input_precision="ieee") * slope - rowlse[:, None])
    p1, p2 = _shown(p1, p2, 0.0, mask, b, columns, T, EVEN)
    return _signed(p1, p2, keys, b, h, rows, columns, T, LIMIT)


@triton.jit
def _slopes(p, dout, v, delta):
    """dS / (GROWN SCALE) of a block, from signed P and D / GROWN; the factors wait for the sums."""
    dp = tl.dot(dout, tl.trans(v), input_precision="ieee")
    return (tl.abs(p) * (tl.where(p > 0, dp, 0.0) - delta[:, None])).to(v.dtype)


@triton.jit
def _backward_kernel(
    qkv, out, lse, dout, dqkv, sums, mask, keys, T, H: tl.constexpr, D: tl.constexpr,
    LIMIT: tl.constexpr, GROWN: tl.constexpr, SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """The whole backward of one head of a row that is one pair, and no longer than BLOCK_M."""
    head = tl.program_id(0)
    b, h = head // H, head % H
    rows, columns, middle = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), (T + 1) // 2
    stride: tl.constexpr = 3 * H * D
    qkv += b.to(tl.int64) * T * stride + h * D
    dqkv += b.to(tl.int64) * T * stride + h * D
    own = b.to(tl.int64) * T * H * D + h * D
    q = _loaded(qkv, rows, T, stride, D, EVEN)
    k1 = _loaded(qkv + H * D, columns, middle, stride, D, EVEN)
    k2 = _loaded(qkv + H * D, columns + middle, T, stride, D, EVEN)
    do = _loaded(dout + own, rows, T, H * D, D, EVEN)
    o = _loaded(out + own, rows, T, H * D, D, EVEN)
    v1 = _loaded(qkv + 2 * H * D, columns, middle, stride, D, EVEN)
    v2 = _loaded(qkv + 2 * H * D, columns + middle, T, stride, D, EVEN)
    rowlse = tl.load(lse + head.to(tl.int64) * T + rows, rows < T, float("inf")) * LOG2E
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1) * (1 / GROWN)
    p1, p2 = _probabilities(q, k1, k2, rowlse, mask, keys, b, h, rows, columns, T, LIMIT, SCALE, EVEN)
    # each result is stored before the next begins: registers are what this kernel is short of
    sums += b.to(tl.int64) * stride + h * D + tl.arange(0, D)
    dv1 = tl.dot(tl.trans(tl.maximum(p1, 0.0).to(do.dtype)), do, input_precision="ieee")
    _store(dqkv + 2 * H * D, columns, middle, stride, dv1 * GROWN, D, EVEN)
    dv2 = tl.dot(tl.trans(tl.maximum(p2, 0.0).to(do.dtype)), do, input_precision="ieee")
    _store(dqkv + 2 * H * D, columns + middle, T, stride, dv2 * GROWN, D, EVEN)
    tl.store(sums + 2 * H * D, (tl.sum(dv1, 0) + tl.sum(dv2, 0)) * GROWN)
    ds1 = _slopes(p1, do, v1, delta)
    dk1 = tl.dot(tl.trans(ds1), q, input_precision="ieee")
    _store(dqkv + H * D, columns, middle, stride, dk1 * (SCALE * GROWN), D, EVEN)
    ds2 = _slopes(p2, do, v2, delta)
    dk2 = tl.dot(tl.trans(ds2), q, input_precision="ieee")
    _store(dqkv + H * D, columns + middle, T, stride, dk2 * (SCALE * GROWN), D, EVEN)
    tl.store(sums + H * D, tl.zeros([D], tl.float32))  # a row of dS sums to nothing: keys may all move alike
    dq = tl.dot(ds1, k1, input_precision="ieee")
    dq = tl.dot(ds2, k2, dq, input_precision="ieee")
    _store(dqkv, rows, T, stride, dq * (SCALE * GROWN), D, EVEN)
    tl.store(sums, tl.sum(dq, 0) * (SCALE * GROWN))


@triton.jit
def _backward_queries_kernel(
    qkv, out, lse, dout, delta, dqkv, mask, keys, T, H: tl.constexpr, D: tl.constexpr,
    LIMIT: tl.constexpr, GROWN: tl.constexpr, SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """dq and D / GROWN of a block of queries."""
    blocks = tl.cdiv(T, BLOCK_M)
    rows = (tl.program_id(0) % blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    head = tl.program_id(0) // blocks
    b, h = head // H, head % H
    middle = (T + 1) // 2
    stride: tl.constexpr = 3 * H * D
    qkv += b.to(tl.int64) * T * stride + h * D
    dqkv += b.to(tl.int64) * T * stride + h * D
    own = b.to(tl.int64) * T * H * D + h * D
    q = _loaded(qkv, rows, T, stride, D, EVEN)
    do = _loaded(dout + own, rows, T, H * D, D, EVEN)
    o = _loaded(out + own, rows, T, H * D, D, EVEN)
    rowdelta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1) * (1 / GROWN)
    tl.store(delta + head.to(tl.int64) * T + rows, rowdelta, rows < T)
    rowlse = tl.load(lse + head.to(tl.int64) * T + rows, rows < T, float("inf")) * LOG2E
    dq = tl.zeros([BLOCK_M, D], tl.float32)
    for pair in range(PAIRS):
        columns = pair * BLOCK_N + tl.arange(0, BLOCK_N)
        k1 = _loaded(qkv + H * D, columns, middle, stride, D, EVEN)
        k2 = _loaded(qkv + H * D, columns + middle, T, stride, D, EVEN)
        v1 = _loaded(qkv + 2 * H * D, columns, middle, stride, D, EVEN)
        v2 = _loaded(qkv + 2 * H * D, columns + middle, T, stride, D, EVEN)
        p1, p2 = _probabilities(q, k1, k2, rowlse, mask, keys, b, h, rows, columns, T, LIMIT, SCALE, EVEN)
        dq = tl.dot(_slopes(p1, do, v1, rowdelta), k1, dq, input_precision="ieee")
        dq = tl.dot(_slopes(p2, do, v2, rowdelta), k2, dq, input_precision="ieee")
    _store(dqkv, rows, T, stride, dq * (SCALE * GROWN), D, EVEN)


@triton.jit
def _backward_keys_kernel(
    qkv, lse, dout, delta, dqkv, mask, keys, T, H: tl.constexpr, D: tl.constexpr,
    LIMIT: tl.constexpr, GROWN: tl.constexpr, SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """dk and dv of a pair of blocks."""
    columns = (tl.program_id(0) % PAIRS) * BLOCK_N + tl.arange(0, BLOCK_N)
    head = tl.program_id(0) // PAIRS
    b, h = head // H, head % H
    middle = (T + 1) // 2
    stride: tl.constexpr = 3 * H * D
    qkv += b.to(tl.int64) * T * stride + h * D
    dqkv += b.to(tl.int64) * T * stride + h * D
    own = b.to(tl.int64) * T * H * D + h * D
    k1 = _loaded(qkv + H * D, columns, middle, stride, D, EVEN)
    k2 = _loaded(qkv + H * D, columns + middle, T, stride, D, EVEN)
    v1 = _loaded(qkv + 2 * H * D, columns, middle, stride, D, EVEN)
    v2 = _loaded(qkv + 2 * H * D, columns + middle, T, stride, D, EVEN)
    dk1, dk2 = tl.zeros([BLOCK_N, D], tl.float32), tl.zeros([BLOCK_N, D], tl.float32)
    dv1, dv2 = tl.zeros([BLOCK_N, D], tl.float32), tl.zeros([BLOCK_N, D], tl.float32)
    for block in range((2 * PAIRS * BLOCK_N + BLOCK_M - 1) // BLOCK_M):
        rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
        q = _loaded(qkv, rows, T, stride, D, EVEN)
        do = _loaded(dout + own, rows, T, H * D, D, EVEN)
        rowlse = tl.load(lse + head.to(tl.int64) * T + rows, rows < T, float("inf")) * LOG2E
        rowdelta = tl.load(delta + head.to(tl.int64) * T + rows, rows < T, 0.0)
        p1, p2 = _probabilities(q, k1, k2, rowlse, mask, keys, b, h, rows, columns, T, LIMIT, SCALE, EVEN)
        dv1 = tl.dot(tl.trans(tl.maximum(p1, 0.0).to(do.dtype)), do, dv1, input_precision="ieee")
        dv2 = tl.dot(tl.trans(tl.maximum(p2, 0.0).to(do.dtype)), do, dv2, input_precision="ieee")
        dk1 = tl.dot(tl.trans(_slopes(p1, do, v1, rowdelta)), q, dk1, input_precision="ieee")
        dk2 = tl.dot(tl.trans(_slopes(p2, do, v2, rowdelta)), q, dk2, input_precision="ieee")
    _store(dqkv + H * D, columns, middle, stride, dk1 * (SCALE * GROWN), D, EVEN)
    _store(dqkv + H * D, columns + middle, T, stride, dk2 * (SCALE * GROWN), D, EVEN)
    _store(dqkv + 2 * H * D, columns, middle, stride, dv1 * GROWN, D, EVEN)
    _store(dqkv + 2 * H * D, columns + middle, T, stride, dv2 * GROWN, D, EVEN)
