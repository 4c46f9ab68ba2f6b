"""Randomness as a function of counters: nothing is drawn, everything is looked up.

Masked positions, sampled tokens and dropout bits are hashes of (seed, step, row, site, element), so a run has no
generator state to save: resuming is exact, and a row meets the same noise on whichever rank or micro-batch it falls.

    mix(x)            a bijection of the 32-bit words with full avalanche (the multiply-xorshift constants of
                      Chris Wellons' hash prospector, "lowbias32")
    fold(key, x)      mix(key ^ mix(x)): a new key for counter x under `key`

Keys are int32 tensors whose 32 bits are read as unsigned. Integer arithmetic wraps on every device, so the kernels at
the end of this file, which spell out the same lines, get the same bits. The step may be a tensor: a replayed graph then
advances by itself.
"""

import torch
from torch import Tensor

from elektron.kernels.gpu import runs_on, tl, triton

_GOLDEN = 0x9E3779B9 - (1 << 32)  # keeps zero from being a fixed point
_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B - (1 << 32)


def mix(x: Tensor) -> Tensor:
    return _mix_(x.clone())


def fold(key: Tensor, counter: Tensor | int) -> Tensor:
    """The keys of `counter` under `key`; the two broadcast against each other."""
    if isinstance(counter, int):
        counter = torch.full((), _signed(counter), dtype=torch.int32, device=key.device)
    counter = counter.to(torch.int32)
    return _folded(key, counter) if runs_on(key) else _mix_(key ^ mix(counter))


def seed_key(seed: int, device: torch.device | str = "cpu") -> Tensor:
    """The root key of a 64-bit seed."""
    return fold(fold(torch.zeros((), dtype=torch.int32, device=device), seed), seed >> 32)


def row_keys(seed: int, step: Tensor | int, rows: Tensor) -> Tensor:
    """One key for each row of a step; `rows` are places in the global batch."""
    return fold(fold(seed_key(seed, rows.device), step), rows)


def elements(key: Tensor, count: int) -> Tensor:
    """The bits of `count` elements under each key: [..., count]."""
    return fold(key[..., None], torch.arange(count, dtype=torch.int32, device=key.device))


def unsigned(bits: Tensor) -> Tensor:
    """The bits as whole numbers from 0 to 2^32 - 1 (int64)."""
    return bits.long() & 0xFFFFFFFF


def uniform(bits: Tensor) -> Tensor:
    """float32 strictly inside (0, 1): the upper 23 bits and a half, which float32 holds exactly."""
    return (bits >> 9).bitwise_and_(0x7FFFFF).float().add_(0.5).mul_(2.0**-23)


def gumbel(bits: Tensor) -> Tensor:
    """Standard Gumbel noise, -log(-log u)."""
    return uniform(bits).log_().neg_().log_().neg_()


def dropout(x: Tensor, rate: float, keys: Tensor | None) -> Tensor:
    """Zero each element with probability `rate`, scale the rest. x is [B, ...], keys [B], or None to drop nothing."""
    if keys is None or rate == 0.0:
        return x
    return (x * kept(x.shape, rate, keys, x.dtype)).mul_(1.0 / (1.0 - rate))


def kept(shape: torch.Size, rate: float, keys: Tensor, dtype: torch.dtype) -> Tensor:
    """1 where dropout leaves an element of [B, ..., n] alone, 0 where it takes it: by the row's key and the place in
    the row, never by the batch around it. Each line of n elements has a key, and words for half as many: the first half
    of the line reads their lower 16 bits, as signed, the other half their upper ones.

    It multiplies, because torch's masked_fill is four times slower on a CPU."""
    lines = elements(keys, shape[1:-1].numel())  # [B, lines of a row]
    words = elements(lines, half(shape[-1]))
    limit = threshold(rate)
    low, high = words << 16 >= limit, words >= limit
    return torch.cat([low, high], -1)[..., : shape[-1]].to(dtype).view(shape)


def half(count: int) -> int:
    """Words for a line of `count` elements: two share one."""
    return -(-count // 2)


def threshold(rate: float) -> int:
    """What a word must reach, read as signed, for its upper 16 bits to be kept."""
    return (int(rate * 2**16) - 2**15) << 16


def token_dropout(rate: float, keys: Tensor | None) -> dict[str, object]:
    """What `keep_scales` is told."""
    return {"DROPS": keys is not None and rate > 0, "LIMIT": threshold(rate), "KEPT_SCALE": 1.0 / (1.0 - rate)}


def _mix_(x: Tensor) -> Tensor:
    """`mix` in place. The shifts are made logical by masking off the copies of the sign."""
    shifted = torch.empty_like(x)
    x.add_(_GOLDEN)
    for shift, factor in ((16, _FIRST), (15, _SECOND), (16, 0)):
        torch.bitwise_right_shift(x, shift, out=shifted)
        x.bitwise_xor_(shifted.bitwise_and_((1 << (32 - shift)) - 1))
        if factor:
            x.mul_(factor)
    return x


def _signed(value: int) -> int:
    """The low 32 bits of `value`, as the int32 that has them."""
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _folded(key: Tensor, counter: Tensor) -> Tensor:
    key, counter = torch.broadcast_tensors(key, counter)
    out = torch.empty(key.shape, dtype=torch.int32, device=key.device)
    count = out.numel()
    if count:
        _fold_kernel[(triton.cdiv(count, 1024),)](key.contiguous(), counter.contiguous(), out, count, BLOCK=1024)
    return out


@triton.jit
def mixed(x):  # uint32 -> uint32
    x += 0x9E3779B9
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def folded(key, counter):  # uint32, uint32 -> uint32
    return mixed(key ^ mixed(counter))


@triton.jit
def _fold_kernel(keys, counters, out, count, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + places, places < count, 0).to(tl.uint32, bitcast=True)
    counter = tl.load(counters + places, places < count, 0).to(tl.uint32, bitcast=True)
    tl.store(out + places, folded(key, counter).to(tl.int32, bitcast=True), places < count)


@triton.jit
def keep_scales(keys, tokens, columns, length, WIDTH: tl.constexpr, LIMIT: tl.constexpr, KEPT_SCALE: tl.constexpr):
    """[tokens, columns]: 0 where dropout takes an element of a width of WIDTH, else what it is multiplied by."""
    HALF: tl.constexpr = (WIDTH + 1) // 2
    key = tl.load(keys + tokens // length).to(tl.uint32, bitcast=True)
    line = folded(key, (tokens % length).to(tl.uint32))
    word = mixed(line[:, None] ^ mixed((columns % HALF).to(tl.uint32))[None, :])
    word = tl.where((columns < HALF)[None, :], word << 16, word)
    return tl.where(word.to(tl.int32, bitcast=True) >= LIMIT, KEPT_SCALE, 0.0)
