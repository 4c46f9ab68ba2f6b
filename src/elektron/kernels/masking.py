"""Which positions of a row are masked, and putting tokens there.

    positions = the K ordinary tokens of the row with the smallest hashes, in ascending order
    masked    = original, with [MASK] at the positions, but for a share of them that keep their token
    picked    = what the generator made of the tokens at the positions
    corrupted = original, with the samples at the positions
    replaced  = corrupted != original

Shapes in comments: B rows, T tokens of a row, K masked positions of a row, D width.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from elektron.kernels.counters import elements, folded, uniform, unsigned
from elektron.kernels.gpu import runs_on, tl, triton

Draws = Literal["without-replacement", "with-replacement"]
_LONGEST = 2048  # of the rows that one program takes whole
_COMPARED = 4096  # pairs at a time
_TOKENS, _COLUMNS = 64, 64  # of a tile of states


class Masked(NamedTuple):
    """What the generator is to fill in."""

    positions: Tensor  # [B, K]
    targets: Tensor  # [B, K] the tokens there
    masked: Tensor  # [B, T]


class Corrupted(NamedTuple):
    """What the discriminator is to judge."""

    corrupted: Tensor  # [B, T]
    replaced: Tensor  # [B, T] bool; a sample that is the original token is an original token


def masked_count(length: int, rate: float) -> int:
    """K: the rate is of the whole row, specials included, as in the original."""
    return max(1, round(rate * length))


def mask(
    original: Tensor,
    cls: int,
    sep: int,
    mask_token: int,
    count: int,
    draws: Draws,
    keep_rate: float,
    position_keys: Tensor,
    keep_keys: Tensor,
) -> Masked:
    """Hide `count` tokens of each row [B, T], `cls` and `sep` only if there are too few others; each keeps its token
    with probability `keep_rate`. The keys [B] are the rows' noise."""
    if runs_on(original) and draws == "without-replacement" and original.shape[1] <= _LONGEST:
        return _masked(original, cls, sep, mask_token, count, keep_rate, position_keys, keep_keys)
    return plainly_masked(original, cls, sep, mask_token, count, draws, keep_rate, position_keys, keep_keys)


def corrupt(original: Tensor, positions: Tensor, sampled: Tensor) -> Corrupted:
    """Rows [B, T] with the samples, as many as there are positions [B, K], in place."""
    if runs_on(original) and original.shape[1] <= _LONGEST:
        return _corrupted(original, positions, sampled)
    return plainly_corrupted(original, positions, sampled)


def picked(hidden: Tensor, positions: Tensor) -> Tensor:
    """The states [B, T, D] at the positions [B, K]: [B, K, D]."""
    if runs_on(hidden):
        return _Picked.apply(hidden.contiguous(), positions)  # pyright: ignore[reportReturnType]
    return hidden.gather(1, positions[..., None].expand(-1, -1, hidden.shape[-1]))


class _Picked(torch.autograd.Function):
    """torch's own `gather` adds atomically on its way back: in no fixed order where a position was drawn often."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, positions: Tensor) -> Tensor:
        (rows, length, width), count = hidden.shape, positions.shape[1]
        ctx.save_for_backward(positions)
        ctx.shape = hidden.shape
        out = hidden.new_empty(rows, count, width)
        _pick_kernel[(rows, triton.cdiv(width, _COLUMNS))](
            *(hidden, positions, out), T=length, K=count, D=width, **_pick_tile(count)
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (positions,) = ctx.saved_tensors
        (rows, length, width), count = ctx.shape, positions.shape[1]
        out = grad.new_empty(ctx.shape)
        _unpick_kernel[(rows, triton.cdiv(length, _TOKENS), triton.cdiv(width, _COLUMNS))](
            *(grad.contiguous(), positions, out), T=length, K=count, D=width, TOKENS=_TOKENS, **_pick_tile(count)
        )
        return out, None


def _pick_tile(count: int) -> dict[str, int]:
    return {"PADDED": max(16, triton.next_power_of_2(count)), "COLUMNS": _COLUMNS, "num_warps": 4}


def plainly_masked(
    original: Tensor,
    cls: int,
    sep: int,
    mask_token: int,
    count: int,
    draws: Draws,
    keep_rate: float,
    position_keys: Tensor,
    keep_keys: Tensor,
) -> Masked:
    candidates = (original != cls) & (original != sep)
    positions = choose(candidates, count, draws, position_keys)
    hides = uniform(elements(keep_keys, count)) >= keep_rate
    masked = original.masked_fill(covered(positions, hides, original.shape[1]), mask_token)
    return Masked(positions, original.gather(1, positions), masked)


def plainly_corrupted(original: Tensor, positions: Tensor, sampled: Tensor) -> Corrupted:
    corrupted = place(original, positions, sampled.view_as(positions))
    return Corrupted(corrupted, corrupted != original)


def choose(candidates: Tensor, count: int, draws: Draws, keys: Tensor) -> Tensor:
    """`count` positions of each row among its candidates [B, T], in ascending order: [B, K]."""
    if draws == "without-replacement":
        return _distinct(candidates, count, keys)
    return _repeated(candidates, count, keys)


def _distinct(candidates: Tensor, count: int, keys: Tensor) -> Tensor:
    """The candidates with the smallest hashes. A position in the low bits makes every rank different, so that there is
    one answer on every device."""
    length = candidates.shape[1]
    places = torch.arange(length, device=candidates.device)
    ranks = (unsigned(elements(keys, length)) << 16 | places) + (~candidates).long() * (1 << 50)
    return (ranks.topk(count, largest=False, sorted=False).values & 0xFFFF).sort().values


def _repeated(candidates: Tensor, count: int, keys: Tensor) -> Tensor:
    """Independent draws, as Google's code makes them: a position may come twice."""
    numbers = candidates.cumsum(1)  # the n-th candidate is where this first reaches n
    draws = (uniform(elements(keys, count)) * numbers[:, -1:]).long() + 1
    return torch.searchsorted(numbers, draws.sort().values)


def covered(positions: Tensor, where: Tensor, length: int) -> Tensor:
    """[B, T]: the positions for which `where` [B, K] is true, at least once."""
    return positions.new_zeros(len(positions), length).scatter_add_(1, positions, where.long()) > 0


def place(tokens: Tensor, positions: Tensor, values: Tensor) -> Tensor:
    """`tokens` [B, T] with `values` at `positions` [B, K]. A position that was drawn twice gets the mean of its values,
    rounded down, as Google's scatter gives it."""
    sums = torch.zeros_like(tokens).scatter_add_(1, positions, values)
    counts = torch.zeros_like(tokens).scatter_add_(1, positions, torch.ones_like(positions))
    return torch.where(counts > 0, sums // counts.clamp(min=1), tokens)


def _masked(
    original: Tensor,
    cls: int,
    sep: int,
    mask_token: int,
    count: int,
    keep_rate: float,
    position_keys: Tensor,
    keep_keys: Tensor,
) -> Masked:
    rows, length = original.shape
    assert count <= length, f"{count} positions in rows of {length}"
    positions, targets = original.new_empty(2, rows, count)
    masked = torch.empty_like(original, memory_format=torch.contiguous_format)
    keys = position_keys.contiguous(), keep_keys.contiguous()
    padded = triton.next_power_of_2(length)
    _mask_kernel[(rows,)](
        *(original.contiguous(), *keys, positions, targets, masked, cls, sep, mask_token, keep_rate),
        T=length,
        K=count,
        PADDED=padded,
        BLOCK=min(padded, _COMPARED // padded),
        num_warps=8,
    )
    return Masked(positions, targets, masked)


def _corrupted(original: Tensor, positions: Tensor, sampled: Tensor) -> Corrupted:
    (rows, length), count = original.shape, positions.shape[1]
    corrupted = torch.empty_like(original, memory_format=torch.contiguous_format)
    replaced = torch.empty_like(corrupted, dtype=torch.bool)
    padded = triton.next_power_of_2(length)
    _corrupt_kernel[(rows,)](
        *(original.contiguous(), positions.contiguous(), sampled.contiguous(), corrupted, replaced),
        T=length,
        K=count,
        PADDED=padded,
        BLOCK=min(triton.next_power_of_2(count), _COMPARED // padded),
        num_warps=8,
    )
    return Corrupted(corrupted, replaced)


@triton.jit
def _ranks(original, key, places, cls, sep, T: tl.constexpr):
    """The smallest are masked: ordinary tokens, then by hash, then by place."""
    token = tl.load(original + places, places < T, 0)
    special = (token == cls) | (token == sep)
    hashes = folded(key, places.to(tl.uint32)).to(tl.int64)
    return (hashes << 16 | places) + special.to(tl.int64) * (1 << 50) + (places >= T).to(tl.int64) * (1 << 51)


@triton.jit
def _mask_kernel(
    original, position_keys, keep_keys, positions, targets, masked, cls, sep, mask_token, keep_rate,
    T: tl.constexpr, K: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    original += row * T
    key = tl.load(position_keys + row).to(tl.uint32, bitcast=True)
    places = tl.arange(0, PADDED)
    ranks = _ranks(original, key, places, cls, sep, T)
    smaller = tl.zeros([PADDED], tl.int32)
    for start in range(0, PADDED, BLOCK):
        others = _ranks(original, key, start + tl.arange(0, BLOCK), cls, sep, T)
        smaller += tl.sum((others[None, :] < ranks[:, None]).to(tl.int32), 1)
    chosen = smaller < K  # K <= T: never one of the padding
    number = tl.cumsum(chosen.to(tl.int32), 0) - 1  # 0 to K - 1 for the chosen
    token = tl.load(original + places, places < T, 0)
    tl.store(positions + row * K + number, places.to(tl.int64), chosen)
    tl.store(targets + row * K + number, token, chosen)
    bits = folded(tl.load(keep_keys + row).to(tl.uint32, bitcast=True), number.to(tl.uint32))
    hidden = ((bits >> 9).to(tl.float32) + 0.5) * (1 / 2**23) >= keep_rate
    tl.store(masked + row * T + places, tl.where(chosen & hidden, mask_token, token), places < T)


@triton.jit
def _pick_kernel(
    hidden, positions, out,
    T: tl.constexpr, K: tl.constexpr, D: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    number, columns = tl.arange(0, PADDED), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (number < K)[:, None] & (columns < D)[None, :]
    position = tl.load(positions + row * K + number, number < K, 0)
    states = tl.load(hidden + row * T * D + position[:, None] * D + columns[None, :], inside)
    tl.store(out + row * K * D + number[:, None] * D + columns[None, :], states, inside)


@triton.jit
def _unpick_kernel(
    grad, positions, out,
    T: tl.constexpr, K: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr, PADDED: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """A token's share is the sum over its places among the positions, as a product with zeros and ones."""
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    number, columns = tl.arange(0, PADDED), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    position = tl.load(positions + row * K + number, number < K, -1)
    inside = (number < K)[:, None] & (columns < D)[None, :]
    given = tl.load(grad + row * K * D + number[:, None] * D + columns[None, :], inside, 0.0)
    here = (position[None, :] == tokens[:, None]).to(given.dtype)
    share = tl.dot(here, given, input_precision="ieee")
    places = row * T * D + tokens[:, None] * D + columns[None, :]
    tl.store(out + places, share.to(out.dtype.element_ty), (tokens < T)[:, None] & (columns < D)[None, :])


@triton.jit
def _corrupt_kernel(
    original, positions, sampled, corrupted, replaced,
    T: tl.constexpr, K: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, PADDED)
    sums = tl.zeros([PADDED], tl.int64)
    counts = tl.zeros([PADDED], tl.int64)
    for start in range(0, K, BLOCK):
        number = start + tl.arange(0, BLOCK)
        position = tl.load(positions + row * K + number, number < K, -1)
        value = tl.load(sampled + row * K + number, number < K, 0)
        here = position[None, :] == places[:, None]
        sums += tl.sum(tl.where(here, value[None, :], 0), 1)
        counts += tl.sum(here.to(tl.int64), 1)
    token = tl.load(original + row * T + places, places < T, 0)
    new = tl.where(counts > 0, sums // tl.maximum(counts, 1), token)
    tl.store(corrupted + row * T + places, new, places < T)
    tl.store(replaced + row * T + places, new != token, places < T)
