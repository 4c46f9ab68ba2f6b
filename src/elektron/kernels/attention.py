"""Attention of every token of a row to every token it may see, with dropout of the probabilities.

For each row and head, with queries q, keys k and values v [T, d], and bits m that are 1 where dropout keeps an element:

    S = q k^T / sqrt(d),  S[i, j] = -inf where query i is not to see key j
    P = softmax(S),  O = (m P / (1 - rate)) v

A query whose keys are all hidden gives zeros. Backward needs only L = logsumexp(S) beside O, and computes P again:

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
from elektron.kernels.gpu import LOG2E, exp2, has_room, runs_on, tl, triton
from elektron.kernels.products import partial_sums, row_tiles

_SHORT = 128
"""The longest row that is one pair of blocks."""
_WIDTHS = (16, 32, 64, 128)


def attention(qkv: Tensor, heads: int, mask: Tensor | None, rate: float, keys: Tensor | None) -> Tensor:
    """[B, T, 3 * H * d] -> [B, T, H * d]. The last dimension of `qkv` is ordered (3, H, d); `mask` is True where a key
    may be seen: by all queries [B, T], or by each its own [B, T, T], or [1, T, T] in all rows; None when all may;
    `keys` [B] are the rows' noise, None when nothing is to be dropped."""
    if runs_on(qkv) and fits(qkv, qkv.shape[-1] // (3 * heads)):
        return _Attention.apply(qkv.contiguous(), heads, mask, rate, keys)  # pyright: ignore[reportReturnType]
    return plain_attention(qkv, heads, mask, rate, keys)


def plain_attention(qkv: Tensor, heads: int, mask: Tensor | None, rate: float, keys: Tensor | None) -> Tensor:
    rows, length, _ = qkv.shape
    q, k, v = qkv.view(rows, length, 3, heads, -1).permute(2, 0, 3, 1, 4)  # [B, H, T, d] each
    alive = None
    if mask is not None:
        mask = mask if mask.ndim == 3 else mask[:, None]  # [B, T or 1, T]
        alive = mask.any(-1, keepdim=True)  # [B, T or 1, 1]
        mask = (mask | ~alive)[:, None]  # [B, 1, T or 1, T]: no softmax over nothing, which would be nan
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
    queries, warps = (128, 8) if 64 < length <= _SHORT else (64, 4)
    task, tiles = _task(qkv, heads, mask, rate, keys), _tiles(length, queries, warps, stages=2)
    grid = (rows * heads * triton.cdiv(length, tiles["BLOCK_M"]),)
    _forward_kernel[grid](qkv, out, lse, **task, **tiles)
    return out, lse


def attention_backward(
    dout: Tensor, qkv: Tensor, out: Tensor, lse: Tensor,
    heads: int, mask: Tensor | None, rate: float, keys: Tensor | None, sums: Tensor,
) -> Tensor:  # fmt: skip
    """The gradient of `qkv`, from that of `attention`'s result and what `attention_forward` gave. `sums` [P, 3 H d],
    in float32, gets its sums over tokens in parts: the gradient of the bias that went into `qkv`."""
    rows, length, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // (3 * heads)
    dqkv, task = torch.empty_like(qkv), _task(qkv, heads, mask, rate, keys)
    if length <= _SHORT:
        tiles = _backward_tiles(length, width, qkv.dtype, task["VIEWS"])
        _backward_kernel[(rows * heads,)](qkv, lse, dout, dqkv, sums, **task, **tiles)
        return dqkv
    delta, lines = torch.empty_like(lse), torch.empty_like(lse, dtype=torch.int32)
    tiles = _tiles(length, queries=64, warps=4, stages=2)
    grid = (rows * heads * triton.cdiv(length, tiles["BLOCK_M"]),)
    _backward_queries_kernel[grid](qkv, out, lse, dout, delta, lines, dqkv, **task, **tiles)
    tiles = _key_tiles(length, width, task["VIEWS"])
    _backward_keys_kernel[(rows * heads * tiles["PAIRS"],)](qkv, lse, dout, delta, lines, dqkv, **task, **tiles)
    partial_sums(dqkv.flatten(0, 1), sums)
    return dqkv


def sum_parts(rows: int, length: int) -> int:
    """P of the backward pass."""
    return rows if length <= _SHORT else row_tiles(rows * length)


def _task(qkv: Tensor, heads: int, mask: Tensor | None, rate: float, keys: Tensor | None) -> dict[str, Any]:
    """What every kernel is told."""
    keys = None if keys is None or rate == 0 else keys.contiguous()
    length, width = qkv.shape[1], qkv.shape[-1] // (3 * heads)
    return {
        "mask": None if mask is None else mask.contiguous().view(torch.uint8),
        "views": 0 if mask is None or len(mask) == 1 else length * length,
        "keys": keys,
        "T": length,
        "H": heads,
        "D": width,
        "LIMIT": 0 if keys is None else threshold(rate),
        "GROWN": 1.0 if keys is None else 1.0 / (1.0 - rate),
        "SCALE": 1.0 / math.sqrt(width),
        "VIEWS": mask is not None and mask.ndim == 3,
    }


def _backward_tiles(length: int, width: int, dtype: torch.dtype, views: bool) -> dict[str, Any]:
    """Eight warps share the work only from 128 queries on. Two such programs share a multiprocessor, unless heads are
    wide, P is not packed or each query has a view: a few registers too many cost less than half of the warps."""
    if length <= 64:
        return _tiles(length, queries=64, warps=4, stages=1)
    registers = 128 if width <= 64 and dtype == torch.bfloat16 and not views else None
    return _tiles(length, queries=_SHORT, warps=8, stages=1, registers=registers)


def _key_tiles(length: int, width: int, views: bool) -> dict[str, Any]:
    """Three programs share a multiprocessor. The sums of wide heads leave registers for two, and for fewer queries;
    views for two as well."""
    queries, registers = (64, None if views else 168) if width <= 64 else (32, None)
    return _tiles(length, queries, warps=4, stages=2, keys=32, registers=registers)


def _tiles(
    length: int, queries: int, warps: int, stages: int, keys: int = _SHORT // 2, registers: int | None = None
) -> dict[str, Any]:
    """A launch: blocks of that many queries, and of keys, of which two make a pair; the most registers of a thread."""
    keys = min(keys, max(16, triton.next_power_of_2(half(length))))
    return {
        "BLOCK_M": queries,
        "BLOCK_N": keys,
        "PAIRS": triton.cdiv(length, 2 * keys),
        "EVEN": length % (2 * keys) == 0 and length % queries == 0,
        "num_warps": warps,
        "num_stages": stages,
        "maxnreg": registers,
    }


# In the kernels: qkv [B, T, 3, H, D]; out, dout [B, T, H, D]; lse, delta, lines [B, H, T]; keys [B]; mask [B, T] uint8,
# or [B, T, T] with VIEWS, whose rows lie `views` apart. A pair of blocks has columns c and c + half, for BLOCK_N words
# c; its tensors end in 1 and 2. PAIRS make a row; EVEN says that blocks end where it does. LIMIT is the threshold of
# dropout, GROWN 1 / (1 - rate), SCALE 1 / sqrt(d): all constants, because arguments would be loaded again for each
# element.


@triton.jit
def _loaded(base, rows, end, stride, D: tl.constexpr, EVEN: tl.constexpr):
    places = base + rows[:, None] * stride + tl.arange(0, D)[None, :]
    return tl.load(places) if EVEN else tl.load(places, rows[:, None] < end, 0.0)


@triton.jit
def _store(base, rows, end, stride, tile, D: tl.constexpr, EVEN: tl.constexpr):
    places = base + rows[:, None] * stride + tl.arange(0, D)[None, :]
    tl.store(places, tile.to(base.dtype.element_ty), None if EVEN else rows[:, None] < end)


@triton.jit
def _of_queries(base, head, rows, T, other, EVEN: tl.constexpr):
    """What each query has one of: lse, delta or lines."""
    places = base + head.to(tl.int64) * T + rows
    return tl.load(places) if EVEN else tl.load(places, rows < T, other)


@triton.jit
def _shown(x1, x2, hidden: tl.constexpr, mask, views, b, rows, columns, T, EVEN: tl.constexpr, VIEWS: tl.constexpr):
    """The pair with `hidden` where a key is not to be seen."""
    middle = (T + 1) // 2
    seen1, seen2 = columns < middle, columns < T - middle
    if VIEWS:
        view = mask + b.to(tl.int64) * views + rows[:, None] * T + columns[None, :]
        there = (rows < T)[:, None]
        seen1 = tl.load(view, there & seen1[None, :], 0) != 0
        seen2 = tl.load(view + middle, there & seen2[None, :], 0) != 0
    else:
        if mask is not None:
            row = mask + b.to(tl.int64) * T
            seen1 = tl.load(row + columns, seen1, 0) != 0
            seen2 = tl.load(row + middle + columns, seen2, 0) != 0
        seen1, seen2 = seen1[None, :], seen2[None, :]
    if mask is not None or not EVEN:
        x1, x2 = tl.where(seen1, x1, hidden), tl.where(seen2, x2, hidden)
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
def _left(p, keys):
    """What dropout leaves of signed P, packed (see `_packed`) or not."""
    if keys is not None:
        p = _changed("max.bf16x2 $0, $1, $2;", p, 0) if p.dtype == tl.uint32 else tl.maximum(p, 0.0)
    return p


@triton.jit
def _forward_kernel(
    qkv, out, lse, mask, views, keys, T, H: tl.constexpr, D: tl.constexpr,
    LIMIT: tl.constexpr, GROWN: tl.constexpr, SCALE: tl.constexpr, VIEWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(T, BLOCK_M)
    rows = (tl.program_id(0) % blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    head = tl.program_id(0) // blocks
    b, h = head // H, head % H
    middle = (T + 1) // 2
    stride: tl.constexpr = 3 * H * D
    slope: tl.constexpr = SCALE * LOG2E
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
        s1, s2 = _shown(s1, s2, float("-inf"), mask, views, b, rows, columns, T, EVEN, VIEWS)
        before = top
        top = tl.maximum(top, tl.max(tl.maximum(s1, s2), 1) * slope)
        p1 = exp2(s1 * slope - top[:, None])
        p2 = exp2(s2 * slope - top[:, None])
        if PAIRS == 1:
            total = tl.sum(p1 + p2, 1)
        else:
            shrunk = exp2(before - top)
            total = total * shrunk + tl.sum(p1 + p2, 1)
            acc = acc * shrunk[:, None]
        p1, p2 = _signed(p1, p2, keys, b, h, rows, columns, T, LIMIT)
        acc = tl.dot(_left(p1, keys).to(v1.dtype), v1, acc, input_precision="ieee")
        acc = tl.dot(_left(p2, keys).to(v2.dtype), v2, acc, input_precision="ieee")
    sure = tl.where(total > 0, total, 1.0)
    _store(out + b.to(tl.int64) * T * H * D + h * D, rows, T, H * D, acc * (GROWN / sure)[:, None], D, EVEN)
    logsum = tl.where(total > 0, (top + tl.log2(sure)) * 0.6931471805599453, float("inf"))
    tl.store(lse + head.to(tl.int64) * T + rows, logsum, rows < T)


@triton.jit
def _probabilities(
    q, k1, k2, rowlse, mask, views, keys, b, h, rows, columns, T,
    LIMIT: tl.constexpr, SCALE: tl.constexpr, VIEWS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """P of a pair again, signed. With `exp2` the compiler would want more registers than there are."""
    slope: tl.constexpr = SCALE * LOG2E
    p1 = tl.exp2(tl.dot(q, tl.trans(k1), input_precision="ieee") * slope - rowlse[:, None])
    p2 = tl.exp2(tl.dot(q, tl.trans(k2), input_precision="ieee") * slope - rowlse[:, None])
    p1, p2 = _shown(p1, p2, 0.0, mask, views, b, rows, columns, T, EVEN, VIEWS)
    return _signed(p1, p2, keys, b, h, rows, columns, T, LIMIT)


@triton.jit
def _packed(p1, p2, kind: tl.constexpr):
    """The pair in 16 bits; in bfloat16, both in one word: the compiler would give each a register of 32."""
    if kind == tl.bfloat16:
        p1 = tl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [p1, p2], tl.uint32, True, 1)
        p2 = p1
    else:
        p1, p2 = p1.to(kind), p2.to(kind)
    return p1, p2


@triton.jit
def _changed(code: tl.constexpr, pair, word):
    """A packed pair after an instruction. The compiler does not look inside: it would rather have blocks unpacked once,
    change those, and keep them."""
    return tl.inline_asm_elementwise(code, "=r,r,r", [pair, word], tl.uint32, True, 1)


@triton.jit
def _block(p, SECOND: tl.constexpr, kind: tl.constexpr):
    """The first or the second block of a pair, out of either."""
    if p.dtype != tl.uint32:
        p = p.to(kind)
    elif kind == tl.float32:
        p = (p & 0xFFFF0000 if SECOND else p << 16).to(tl.float32, bitcast=True)
    else:
        p = (p >> 16 if SECOND else p).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return p


@triton.jit
def _unsigned(p):
    return _changed("and.b32 $0, $1, $2;", p, 0x7FFF7FFF) if p.dtype == tl.uint32 else tl.abs(p)


@triton.jit
def _backward_kernel(
    qkv, lse, dout, dqkv, sums, mask, views, keys, T, H: tl.constexpr, D: tl.constexpr,
    LIMIT: tl.constexpr, GROWN: tl.constexpr, SCALE: tl.constexpr, VIEWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """The whole backward of one head of a row that is one pair, and no longer than BLOCK_M. Registers are what it is
    short of: each result is stored before the next begins, and P waits packed. Here P is P GROWN SCALE, which spares
    factors later; and with all of a row's P and dP = dO v^T at hand, D is rowsum(m P dP) GROWN: O is not read."""
    head = tl.program_id(0)
    b, h = head // H, head % H
    rows, columns, middle = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), (T + 1) // 2
    stride: tl.constexpr = 3 * H * D
    qkv += b.to(tl.int64) * T * stride + h * D
    dqkv += b.to(tl.int64) * T * stride + h * D
    sums += b.to(tl.int64) * stride + h * D + tl.arange(0, D)
    q = _loaded(qkv, rows, T, stride, D, EVEN)
    k1 = _loaded(qkv + H * D, columns, middle, stride, D, EVEN)
    k2 = _loaded(qkv + H * D, columns + middle, T, stride, D, EVEN)
    rowlse = _of_queries(lse, head, rows, T, float("inf"), EVEN) * LOG2E
    rowlse -= tl.log2(tl.full([BLOCK_M], GROWN * SCALE, tl.float32))
    do = _loaded(dout + b.to(tl.int64) * T * H * D + h * D, rows, T, H * D, D, EVEN)
    v1 = _loaded(qkv + 2 * H * D, columns, middle, stride, D, EVEN)
    v2 = _loaded(qkv + 2 * H * D, columns + middle, T, stride, D, EVEN)
    p1, p2 = _probabilities(q, k1, k2, rowlse, mask, views, keys, b, h, rows, columns, T, LIMIT, SCALE, VIEWS, EVEN)
    p1, p2 = _packed(p1, p2, q.dtype)
    dv1 = tl.dot(tl.trans(_block(_left(p1, keys), False, do.dtype)), do, input_precision="ieee")
    _store(dqkv + 2 * H * D, columns, middle, stride, dv1 * (1 / SCALE), D, EVEN)
    dv2 = tl.dot(tl.trans(_block(_left(p2, keys), True, do.dtype)), do, input_precision="ieee")
    _store(dqkv + 2 * H * D, columns + middle, T, stride, dv2 * (1 / SCALE), D, EVEN)
    tl.store(sums + 2 * H * D, tl.sum(dv1 + dv2, 0) * (1 / SCALE))
    ds1 = _left(_block(p1, False, tl.float32), keys) * tl.dot(do, tl.trans(v1), input_precision="ieee")
    ds2 = _left(_block(p2, True, tl.float32), keys) * tl.dot(do, tl.trans(v2), input_precision="ieee")
    delta = (tl.sum(ds1 + ds2, 1) * (1 / (GROWN * SCALE)))[:, None]
    ds1 = (ds1 - _block(_unsigned(p1), False, tl.float32) * delta).to(q.dtype)
    ds2 = (ds2 - _block(_unsigned(p2), True, tl.float32) * delta).to(q.dtype)
    dk1 = tl.dot(tl.trans(ds1), q, input_precision="ieee")
    _store(dqkv + H * D, columns, middle, stride, dk1, D, EVEN)
    dk2 = tl.dot(tl.trans(ds2), q, input_precision="ieee")
    _store(dqkv + H * D, columns + middle, T, stride, dk2, D, EVEN)
    tl.store(sums + H * D, tl.zeros([D], tl.float32))  # a row of dS sums to nothing: keys may all move alike
    dq = tl.dot(ds1, k1, input_precision="ieee")
    dq = tl.dot(ds2, k2, dq, input_precision="ieee")
    _store(dqkv, rows, T, stride, dq, D, EVEN)
    total = tl.dot(tl.full([16, BLOCK_M], 1.0, q.dtype), dq.to(q.dtype), input_precision="ieee")  # it, 16 times over
    tl.store(sums, tl.max(total, 0))


@triton.jit
def _slopes(p, dp, delta, keys):
    """dS / (GROWN SCALE) of a block, from signed P, dP and D / GROWN; the factors wait for the sums."""
    return _left(p, keys) * dp - tl.abs(p) * delta


@triton.jit
def _backward_queries_kernel(
    qkv, out, lse, dout, delta, lines, dqkv, mask, views, keys, T, H: tl.constexpr, D: tl.constexpr,
    LIMIT: tl.constexpr, GROWN: tl.constexpr, SCALE: tl.constexpr, VIEWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """dq of a block of queries; for the next kernel delta = D / GROWN, and lines, the keys of dropout (`kept`)."""
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
    if keys is not None:
        line = folded(tl.load(keys + b).to(tl.uint32, bitcast=True), (h * T + rows).to(tl.uint32))
        tl.store(lines + head.to(tl.int64) * T + rows, line.to(tl.int32, bitcast=True), rows < T)
    rowlse = _of_queries(lse, head, rows, T, float("inf"), EVEN) * LOG2E
    dq = tl.zeros([BLOCK_M, D], tl.float32)
    for pair in range(PAIRS):
        columns = pair * BLOCK_N + tl.arange(0, BLOCK_N)
        k1 = _loaded(qkv + H * D, columns, middle, stride, D, EVEN)
        k2 = _loaded(qkv + H * D, columns + middle, T, stride, D, EVEN)
        v1 = _loaded(qkv + 2 * H * D, columns, middle, stride, D, EVEN)
        v2 = _loaded(qkv + 2 * H * D, columns + middle, T, stride, D, EVEN)
        p1, p2 = _probabilities(q, k1, k2, rowlse, mask, views, keys, b, h, rows, columns, T, LIMIT, SCALE, VIEWS, EVEN)
        ds1 = _slopes(p1, tl.dot(do, tl.trans(v1), input_precision="ieee"), rowdelta[:, None], keys)
        dq = tl.dot(ds1.to(k1.dtype), k1, dq, input_precision="ieee")
        ds2 = _slopes(p2, tl.dot(do, tl.trans(v2), input_precision="ieee"), rowdelta[:, None], keys)
        dq = tl.dot(ds2.to(k2.dtype), k2, dq, input_precision="ieee")
    _store(dqkv, rows, T, stride, dq * (SCALE * GROWN), D, EVEN)


@triton.jit
def _backward_keys_kernel(
    qkv, lse, dout, delta, lines, dqkv, mask, views, keys, T, H: tl.constexpr, D: tl.constexpr,
    LIMIT: tl.constexpr, GROWN: tl.constexpr, SCALE: tl.constexpr, VIEWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """dk and dv of a pair of blocks. Scores are transposed, so that P^T and dS^T are operands where they are, in
    registers. The pair is one tile, in which c and c + half lie 8 rows apart: one thread has both, and the compiler
    finds that they share a word."""
    place = tl.arange(0, 2 * BLOCK_N)
    second = place // 8 % 2 == 1
    words = (tl.program_id(0) % PAIRS) * BLOCK_N + place // 16 * 8 + place % 8
    head = tl.program_id(0) // PAIRS
    b, h = head // H, head % H
    middle = (T + 1) // 2
    columns = tl.where(second, words + middle, words)
    inside = words < tl.where(second, T - middle, middle)
    stride: tl.constexpr = 3 * H * D
    slope: tl.constexpr = SCALE * LOG2E
    qkv += b.to(tl.int64) * T * stride + h * D
    dqkv += b.to(tl.int64) * T * stride + h * D
    own = b.to(tl.int64) * T * H * D + h * D
    places = columns[:, None] * stride + tl.arange(0, D)[None, :]
    k = tl.load(qkv + H * D + places, inside[:, None], 0.0)
    v = tl.load(qkv + 2 * H * D + places, inside[:, None], 0.0)
    dk, dv = tl.zeros([2 * BLOCK_N, D], tl.float32), tl.zeros([2 * BLOCK_N, D], tl.float32)
    for block in range((2 * PAIRS * BLOCK_N + BLOCK_M - 1) // BLOCK_M):
        rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
        q = _loaded(qkv, rows, T, stride, D, EVEN)
        do = _loaded(dout + own, rows, T, H * D, D, EVEN)
        rowlse = _of_queries(lse, head, rows, T, float("inf"), EVEN) * LOG2E
        rowdelta = _of_queries(delta, head, rows, T, 0.0, EVEN)
        p = exp2(tl.dot(k, tl.trans(q), input_precision="ieee") * slope - rowlse[None, :])
        if VIEWS:
            view = mask + b.to(tl.int64) * views + rows[None, :] * T + columns[:, None]
            p = tl.where(tl.load(view, inside[:, None] & (rows < T)[None, :], 0) != 0, p, 0.0)
        if keys is not None:
            line = _of_queries(lines, head, rows, T, 0, EVEN).to(tl.uint32, bitcast=True)
            bits = mixed(line[None, :] ^ mixed(words.to(tl.uint32))[:, None])
            bits = tl.where(second[:, None], bits, bits << 16)
            p = tl.where(bits.to(tl.int32, bitcast=True) >= LIMIT, p, -p)
        dv = tl.dot(_left(p, keys).to(do.dtype), do, dv, input_precision="ieee")
        ds = _slopes(p, tl.dot(v, tl.trans(do), input_precision="ieee"), rowdelta[None, :], keys)
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    if mask is not None and not VIEWS:  # not before: what a hidden key gets, if only infinity, has gone nowhere else
        seen = tl.load(mask + b.to(tl.int64) * T + columns, inside, 0) != 0
        dk, dv = tl.where(seen[:, None], dk, 0.0), tl.where(seen[:, None], dv, 0.0)
    tl.store(dqkv + H * D + places, (dk * (SCALE * GROWN)).to(k.dtype), inside[:, None])
    tl.store(dqkv + 2 * H * D + places, (dv * GROWN).to(v.dtype), inside[:, None])
