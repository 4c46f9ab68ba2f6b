"""The generator's last step: from features to a loss and a sample over the vocabulary, without the logits in memory.

For each of N gathered tokens with features f, a table W and a bias b of the vocabulary:

    logits = W f + b
    loss   = logsumexp(logits) - logits[target]
    hit    = logits[target] = max(logits)

and a sample from softmax(z), z = logits / temperature, -inf at a forbidden word; the best word at temperature 0. The
Gumbel-max trick wants noise g = -log(-log u) for every word of every row, which costs more than the logits; so it is
played twice, for a block of 128 words and for a word of it, which is the same distribution:

    Z_b   = logsumexp of z over block b
    block = argmax_b (Z_b + g_b),   word = argmax_(v in block) (z_v + g'_v)

The kernels make a tile of logits of 128 rows and one block at a time, keep its maxima and its sums of exponentials, and
make the tile again where the backward pass wants it:

    dlogits = (exp(logits - logsumexp) - onehot(target)) dloss,   df = dlogits W,   dW += dlogits^T f,   db += dlogits

A sum that several programs share is written out in parts and added in a fixed order: no atomics, the same bits always.

Shapes in comments: N gathered tokens, E embedding width, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.kernels.counters import elements, fold, folded, gumbel
from elektron.kernels.gpu import LOG2E, PROCESSORS, at_home, gradient, has_room, interpreted, runs_on, tl, triton
from elektron.kernels.products import add_product

BLOCK = 128
"""Words that are drawn together."""

_OF_BLOCKS, _OF_WORDS = range(2)
_ROWS = 128
"""Rows of a tile."""
_NARROW = 512
"""Bytes of features that stay on chip, in the backward pass beside a sum as wide; wider ones come in slices."""
_SLICE = 64
_STEP = 64
"""Rows or words that a program of the backward pass takes at a time."""
_CHOSEN = 1
"""Rows of a program that draws."""
_SLOPES = 1 << 27
"""Slopes of the logits that are written out at a time, where the features are wide."""
_WARPS = 8
_SHARPEST = 1e6
"""What logits are multiplied by for the best word to win, whatever the noise."""


class Spoken(NamedTuple):
    """What the generator says."""

    losses: Tensor  # [N] float32
    sampled: Tensor  # [N]
    hits: Tensor  # [N] whether the target was the best guess


def speak(
    features: Tensor,
    table: Tensor,
    bias: Tensor,
    targets: Tensor,
    temperature: float | Tensor,
    allowed: bool,
    keys: Tensor,
) -> Spoken:
    """Losses of the targets [N], samples and hits, from features [N, E]. The target itself is never sampled unless
    `allowed`; `keys` [N] are the rows' noise. Only the losses carry a gradient. A temperature that changes from step to
    step is a tensor."""
    if _fits(features, table, bias):
        return Spoken(*_Speak.apply(features, table, bias, targets, temperature, allowed, keys))
    logits = F.linear(features, table, bias.to(table.dtype)).float()  # [N, V]
    losses = F.cross_entropy(logits, targets, reduction="none")
    logits = logits.detach()
    sampled = sample(logits, temperature, None if allowed else targets, keys)
    hits = logits.gather(1, targets[:, None]).squeeze(1) == logits.amax(1)  # ten times faster than argmax on a CPU
    return Spoken(losses, sampled, hits)


def sample(logits: Tensor, temperature: float | Tensor, forbidden: Tensor | None, keys: Tensor) -> Tensor:
    """A token for each row of logits [N, V] from softmax(logits / temperature); never the one in `forbidden` [N]."""
    is_best = not isinstance(temperature, Tensor) and temperature == 0
    z = F.pad(logits if is_best else logits / temperature, (0, -logits.shape[-1] % BLOCK), value=-torch.inf)
    if forbidden is not None:
        z.scatter_(-1, forbidden[:, None], -torch.inf)
    if is_best:
        return z.argmax(-1)
    z = z.unflatten(-1, (-1, BLOCK))  # [N, blocks, BLOCK]
    block = gumbel(elements(fold(keys, _OF_BLOCKS), z.shape[1])).add(z.logsumexp(-1)).argmax(-1)
    chosen = z.take_along_dim(block[:, None, None], 1).squeeze(1)  # [N, BLOCK]
    return block * BLOCK + gumbel(elements(fold(keys, _OF_WORDS), BLOCK)).add(chosen).argmax(-1)


def _fits(features: Tensor, table: Tensor, bias: Tensor) -> bool:
    """Whether the kernels serve: in 16 bits, where matrix units are; they learn both parameters or neither."""
    return (
        runs_on(features)
        and features.dtype == table.dtype
        and features.dtype.itemsize == 2
        and features.shape[0] > 0
        and features.shape[1] % 16 == 0
        and table.is_contiguous()
        and table.is_leaf
        and table.requires_grad == bias.requires_grad
    )


def _sharpness(temperature: float | Tensor, like: Tensor) -> Tensor:
    """[1] what logits are multiplied by. A graph that is replayed reads it from memory."""
    if isinstance(temperature, Tensor):
        return temperature.float().reciprocal().reshape(1)
    return torch.full((1,), 1.0 / temperature if temperature else _SHARPEST, device=like.device)


class _Speak(torch.autograd.Function):
    """`speak` by kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        table: Tensor,
        bias: Tensor,
        targets: Tensor,
        temperature: float | Tensor,
        allowed: bool,
        keys: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        features, targets, keys = features.contiguous(), targets.contiguous(), keys.contiguous()
        (count, width), size = features.shape, table.shape[0]
        rows, blocks, part = triton.cdiv(count, _ROWS), triton.cdiv(size, BLOCK), _part(features)
        tempered, sharpness = isinstance(temperature, Tensor) or temperature != 1.0, _sharpness(temperature, features)
        run = _run(rows, blocks, _guests(features) * PROCESSORS)
        tops, sums, *rest = features.new_empty(2 + tempered, count, blocks, dtype=torch.float32)
        warm = rest[0] if tempered else sums
        losses, totals = features.new_empty(2, count, dtype=torch.float32)
        sampled = torch.empty_like(targets)
        hits = torch.empty(count, dtype=torch.bool, device=features.device)
        _sweep_kernel[(rows, triton.cdiv(blocks, run))](
            features, table, bias, targets, tops, sums, warm, count, size, blocks, sharpness,
            ALLOWED=allowed, TEMPERED=tempered, RUN=run, E=width, PART=part, ROWS=_ROWS, BLOCK=BLOCK,
            num_warps=_WARPS, num_stages=_stages(features, 2 if part >= width else 3), maxnreg=_registers(features),
        )  # fmt: skip
        chosen = _CHOSEN if not interpreted() else 64  # the interpreter is slow by the program, not by the row
        _choose_kernel[(triton.cdiv(count, chosen),)](
            features, table, bias, targets, keys, tops, sums, warm, losses, totals, sampled, hits,
            count, size, blocks, sharpness,
            ALLOWED=allowed, BLOCKS=triton.next_power_of_2(blocks), E=width,
            PART=min(128, max(16, triton.next_power_of_2(width))), ROWS=chosen, BLOCK=BLOCK,
            OF_BLOCKS=_OF_BLOCKS, OF_WORDS=_OF_WORDS, num_warps=4, num_stages=2,
        )  # fmt: skip
        ctx.save_for_backward(features, table, bias, targets, totals)
        ctx.mark_non_differentiable(sampled, hits)
        return losses, sampled, hits

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> tuple[Tensor | None, ...]:
        features, table, bias, targets, totals = ctx.saved_tensors
        known = features, table, bias, targets, totals, slopes[0], *ctx.needs_input_grad[:2]
        if _part(features) >= features.shape[1]:
            found = _learn_narrow(*known)
        else:
            with at_home(features, targets, totals, slopes[0], is_awaited=True):
                found = _learn_wide(*known)
            if found is not None and found.is_cuda:
                found.record_stream(torch.cuda.current_stream(found.device))
        return found, None, None, None, None, None, None


def _learn_narrow(
    features: Tensor, table: Tensor, bias: Tensor, targets: Tensor, totals: Tensor, slopes: Tensor,
    for_features: bool, for_table: bool,
) -> Tensor | None:  # fmt: skip
    """The gradient of the features; those of the parameters are added where they belong. The logits are made twice,
    once by rows and once by words."""
    (count, width), size, part = features.shape, table.shape[0], _part(features)
    options = {"E": width, "PART": part, "num_warps": _WARPS, "num_stages": _stages(features, 3)}
    found = None
    if for_table:
        with at_home(features, targets, totals, slopes):
            _table_kernel[(triton.cdiv(size, _STEP),)](
                features, table, bias, targets, totals, slopes, slopes.stride(0), gradient(table), gradient(bias),
                count, size, STEPS=triton.cdiv(count, _STEP), ROWS=_STEP, WORDS=_STEP, E=width, PART=part,
                num_warps=4, num_stages=_stages(features, 2),
            )  # fmt: skip
    if for_features:
        rows, tiles = triton.cdiv(count, _ROWS), triton.cdiv(size, _STEP)
        run = _run(rows, tiles, _guests(features) * PROCESSORS)
        parts = features.new_empty(triton.cdiv(tiles, run), count, width, dtype=torch.float32)
        found = torch.empty_like(features)
        _means_kernel[(rows, len(parts))](
            features, table, bias, totals, parts, count, size,
            RUN=run, ROWS=_ROWS, WORDS=_STEP, maxnreg=_registers(features), **options,
        )  # fmt: skip
        _features_kernel[(triton.cdiv(count, 8),)](
            table, targets, slopes, slopes.stride(0), parts, found, count, size,
            PARTS=len(parts), E=width, PART=part, ROWS=8, num_warps=4,
        )  # fmt: skip
    return found


def _learn_wide(
    features: Tensor, table: Tensor, bias: Tensor, targets: Tensor, totals: Tensor, slopes: Tensor,
    for_features: bool, for_table: bool,
) -> Tensor | None:  # fmt: skip
    """The same for wide features, where the products are nearly all of the work and the library's are the fastest: the
    logits' slopes are written out, as many words at a time as `_SLOPES` allows. They are whole blocks, and what is left
    comes last: the library is slow where the number of words is no multiple of eight."""
    (count, width), size, rows = features.shape, table.shape[0], triton.cdiv(features.shape[0], _ROWS)
    most = max(1, min(size, _SLOPES // count) // BLOCK) * BLOCK
    written = features.new_empty(count, most)
    sums = features.new_empty(rows, most, dtype=torch.float32)
    found = features.new_zeros(features.shape, dtype=torch.float32) if for_features else None
    for first in range(0, size, most):
        here = slice(first, min(first + most, size))
        words = here.stop - here.start
        _slopes_kernel[(rows, triton.cdiv(words, BLOCK))](
            features, table, bias, targets, totals, slopes, slopes.stride(0), written, sums, count, size, first, most,
            E=width, PART=_SLICE, ROWS=_ROWS, WORDS=BLOCK, num_warps=_WARPS, num_stages=_stages(features, 3),
        )  # fmt: skip
        if found is not None:
            found += _product(written[:, :words], table[here])
        if for_table:
            add_product(gradient(table)[here], written[:, :words], features)
            gradient(bias)[here] += sums[:, :words].sum(0)
    return None if found is None else found.to(features.dtype)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def _part(features: Tensor) -> int:
    """Columns of features and table that a program takes at a time: all, unless they are wide."""
    whole = max(16, triton.next_power_of_2(features.shape[1]))
    limit = _NARROW if has_room(features, 200) else _NARROW // 2
    return whole if whole * features.element_size() <= limit else _SLICE


def _stages(features: Tensor, stages: int) -> int:
    """Tiles in flight. Those of float32, which only tests have, would not fit."""
    return stages if features.element_size() == 2 else 1


def _guests(features: Tensor) -> int:
    """Programs that share a processor: two where they fit, so that one multiplies while the other exponentiates."""
    return 2 if _part(features) * features.element_size() <= _NARROW // 2 else 1


def _registers(features: Tensor) -> int | None:
    """The most that a thread may take, for two programs of 256 threads to share the 65536 of a processor."""
    return 128 if _guests(features) == 2 else None


def _run(rows: int, tiles: int, slots: int) -> int:
    """Tiles of words for each program over a tile of rows, so that the last wave over the `slots` is nearly full; a
    program's beginning and end cost about as much as one more tile."""
    runs = {triton.cdiv(tiles, parts) for parts in range(1, 65)}
    return min(
        sorted(runs, reverse=True), key=lambda run: triton.cdiv(rows * triton.cdiv(tiles, run), slots) * (run + 1)
    )


@triton.jit
def _tile(matrix, row, ROWS: tl.constexpr, count, column, E: tl.constexpr, PART: tl.constexpr):
    """[ROWS, PART] of a matrix [count, E] from a row and a column on; zeros beyond its edges."""
    rows, columns = tl.arange(0, ROWS), column + tl.arange(0, PART)
    places = matrix + tl.cast(row, tl.int64) * E + (rows[:, None] * E + columns[None, :])
    inside = (rows < count - row)[:, None]
    if E % PART != 0:
        inside = inside & (columns < E)[None, :]
    return tl.load(places, inside, 0.0)


@triton.jit
def _products(
    left, left_row, LEFT: tl.constexpr, left_count, right, right_row, RIGHT: tl.constexpr, right_count,
    E: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """LEFT rows of one matrix times RIGHT rows of another, over E in slices."""
    total = tl.zeros([LEFT, RIGHT], tl.float32)
    for column in range(0, E, PART):
        a = _tile(left, left_row, LEFT, left_count, column, E, PART)
        b = _tile(right, right_row, RIGHT, right_count, column, E, PART)
        total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
    return total


@triton.jit
def _lines(matrix, rows, count, column, E: tl.constexpr, PART: tl.constexpr):
    """float32 [rows, PART] of a matrix [count, E], for rows in any order."""
    columns = column + tl.arange(0, PART)
    places = matrix + rows[:, None].to(tl.int64) * E + columns[None, :]
    return tl.load(places, (rows < count)[:, None] & (columns < E)[None, :], 0.0).to(tl.float32)


@triton.jit
def _biases(bias, words, size):
    """-inf beyond the vocabulary, so that such words have no part in any maximum or sum."""
    return tl.load(bias + words, words < size, float("-inf")).to(tl.float32)


@triton.jit
def _noise(keys, SITE: tl.constexpr, numbers):
    """[keys, numbers] Gumbel noise: `gumbel(fold(fold(keys, SITE), numbers))`."""
    keys = folded(keys, tl.zeros_like(keys) + SITE)
    bits = folded(keys[:, None], numbers.to(tl.uint32)[None, :])
    return -tl.log(-tl.log(((bits >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)))


@triton.jit
def _sweep_kernel(
    features, table, bias, targets, tops, sums, warm, count, size, blocks, coldness,
    ALLOWED: tl.constexpr, TEMPERED: tl.constexpr, RUN: tl.constexpr, E: tl.constexpr, PART: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For rows and RUN blocks of words: the block's largest logit, the sum of exp(logit - largest), the same with the
    temperature, [N, blocks] each. A forbidden target is in none of them.

    Logits are scaled for exp2, the hardware's own; Triton
    would begin a bare product with a bias added to it, and so wait for the bias."""
    sharp = tl.load(coldness)
    start = tl.program_id(0) * ROWS
    rows = start + tl.arange(0, ROWS)
    x = _tile(features, start, ROWS, count, 0, E, PART)  # not read where the features come in slices
    for turn in range(RUN):
        block = tl.program_id(1) * RUN + turn
        words = block * BLOCK + tl.arange(0, BLOCK)
        raised = _biases(bias, words, size) * LOG2E
        if PART >= E:
            w = _tile(table, block * BLOCK, BLOCK, size, 0, E, PART)
            logits = tl.dot(x, tl.trans(w), input_precision="ieee")
        else:
            logits = _products(features, start, ROWS, count, table, block * BLOCK, BLOCK, size, E, PART)
        logits = logits * LOG2E + raised[None, :]
        if not ALLOWED:
            target = tl.load(targets + rows, rows < count, -1).to(tl.int32)
            logits = tl.where(words[None, :] == target[:, None], float("-inf"), logits)
        top = tl.max(logits, 1)
        level = tl.where(top == float("-inf"), 0.0, top)  # a block may have no word left
        inside = (rows < count) & (block < blocks)
        places = rows.to(tl.int64) * blocks + block
        tl.store(tops + places, top * 0.6931471805599453, inside)
        tl.store(sums + places, tl.sum(tl.exp2(logits - level[:, None]), 1), inside)
        if TEMPERED:
            cold = tl.exp2((logits - level[:, None]) * sharp)
            tl.store(warm + places, tl.sum(cold, 1), inside)


@triton.jit
def _choose_kernel(
    features, table, bias, targets, keys, tops, sums, warm, losses, totals, sampled, hits,
    count, size, blocks, coldness,
    ALLOWED: tl.constexpr, BLOCKS: tl.constexpr, E: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, OF_BLOCKS: tl.constexpr, OF_WORDS: tl.constexpr,
):  # fmt: skip
    """A row's loss, its logsumexp, whether the target is the best, a block, and a word of the block, whose logits are
    made once more."""
    sharp = tl.load(coldness)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < count
    target = tl.load(targets + rows, inside, 0).to(tl.int32)
    mine = _biases(bias, target, size)
    for column in range(0, E, PART):
        x = _lines(features, rows, count, column, E, PART)
        mine += tl.sum(x * _lines(table, target, size, column, E, PART), 1)
    key = tl.load(keys + rows, inside, 0).to(tl.uint32, bitcast=True)
    numbers = tl.arange(0, BLOCKS)
    places = rows[:, None].to(tl.int64) * blocks + numbers[None, :]
    there = inside[:, None] & (numbers < blocks)[None, :]
    top = tl.load(tops + places, there, float("-inf"))
    best = tl.max(top, 1)
    level = tl.maximum(best, mine)
    total = tl.sum(tl.load(sums + places, there, 0.0) * tl.exp(top - level[:, None]), 1)
    if not ALLOWED:
        total += tl.exp(mine - level)
    total = level + tl.log(total)
    tl.store(totals + rows, total, inside)
    tl.store(losses + rows, total - mine, inside)
    if ALLOWED:  # it was summed in another order than the maxima
        of_target = tl.load(tops + rows.to(tl.int64) * blocks + target // BLOCK, inside, 0.0)
        hit = (of_target == best) & (mine >= best - 1e-4 * tl.maximum(tl.abs(best), 1.0))
    else:
        hit = mine >= best
    tl.store(hits + rows, hit, inside)

    noisy = top * sharp + tl.log(tl.load(warm + places, there, 0.0)) + _noise(key, OF_BLOCKS, numbers)
    block = tl.argmax(noisy, 1)
    numbers = tl.arange(0, BLOCK)
    words = block[:, None] * BLOCK + numbers[None, :]
    # noise joins the biases first, whose threads are all different; those of a sum over E would each make it again
    noisy = _biases(bias, words, size) * sharp + _noise(key, OF_WORDS, numbers)
    for column in range(0, E, PART):
        x = _lines(features, rows, count, column, E, PART)
        columns = column + tl.arange(0, PART)
        entries = table + words[:, :, None].to(tl.int64) * E + columns[None, None, :]
        w = tl.load(entries, (words < size)[:, :, None] & (columns < E)[None, None, :], 0.0)
        noisy += tl.sum(w.to(tl.float32) * x[:, None, :], 2) * sharp
    if not ALLOWED:
        noisy = tl.where(words == target[:, None], float("-inf"), noisy)
    word = block * BLOCK + tl.argmax(noisy, 1)
    tl.store(sampled + rows, word.to(tl.int64), inside)


@triton.jit
def _row_facts(targets, totals, slopes, stride, rows, count):
    """Target, logsumexp and slope of rows; beyond the last, what makes every dlogit zero."""
    target = tl.load(targets + rows, rows < count, -1).to(tl.int32)
    total = tl.load(totals + rows, rows < count, float("inf"))
    return target, total, tl.load(slopes + rows * stride, rows < count, 0.0)


@triton.jit
def _table_kernel(
    features, table, bias, targets, totals, slopes, stride, table_sum, bias_sum, count, size,
    STEPS: tl.constexpr, E: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """dW and db of a tile of words, over all rows."""
    words = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    w = _tile(table, tl.program_id(0) * WORDS, WORDS, size, 0, E, PART)
    raised = _biases(bias, words, size) * LOG2E
    dw = tl.zeros([WORDS, PART], tl.float32)
    db = tl.zeros([WORDS], tl.float32)
    for step in range(STEPS):
        rows = step * ROWS + tl.arange(0, ROWS)
        x = _tile(features, step * ROWS, ROWS, count, 0, E, PART)
        target, total, slope = _row_facts(targets, totals, slopes, stride, rows, count)
        logits = tl.dot(w, tl.trans(x), input_precision="ieee")  # [words, rows]
        p = tl.exp2(logits * LOG2E + (raised[:, None] - (total * LOG2E)[None, :]))
        d = tl.where(words[:, None] == target[None, :], p - 1.0, p) * slope[None, :]
        db += tl.sum(d, 1)
        dw = tl.dot(d.to(x.dtype), x, dw, input_precision="ieee")
    columns = tl.arange(0, PART)
    places = table_sum + words[:, None].to(tl.int64) * E + columns[None, :]
    inside = (words < size)[:, None] & (columns < E)[None, :]
    tl.store(places, tl.load(places, inside, 0.0) + dw, inside)
    tl.store(bias_sum + words, tl.load(bias_sum + words, words < size, 0.0) + db, words < size)


@triton.jit
def _means_kernel(
    features, table, bias, totals, parts, count, size,
    RUN: tl.constexpr, E: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """For rows and RUN tiles of words: the sum of the words' vectors, by their probabilities; parts [_, N, E]."""
    start = tl.program_id(0) * ROWS
    rows = start + tl.arange(0, ROWS)
    x = _tile(features, start, ROWS, count, 0, E, PART)
    total = tl.load(totals + rows, rows < count, float("inf")) * LOG2E
    mean = tl.zeros([ROWS, PART], tl.float32)
    for turn in range(RUN):
        first = (tl.program_id(1) * RUN + turn) * WORDS
        w = _tile(table, first, WORDS, size, 0, E, PART)
        raised = _biases(bias, first + tl.arange(0, WORDS), size) * LOG2E
        logits = tl.dot(x, tl.trans(w), input_precision="ieee")  # [rows, words]
        p = tl.exp2(logits * LOG2E + (raised[None, :] - total[:, None]))
        mean = tl.dot(p.to(w.dtype), w, mean, input_precision="ieee")
    columns = tl.arange(0, PART)
    lines = tl.program_id(1).to(tl.int64) * count + rows
    tl.store(parts + lines[:, None] * E + columns[None, :], mean, (rows < count)[:, None] & (columns < E)[None, :])


@triton.jit
def _features_kernel(
    table, targets, slopes, stride, parts, out, count, size,
    PARTS: tl.constexpr, E: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """df = (mean - W[target]) dloss, the mean's parts added in their order."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, PART)
    target = tl.load(targets + rows, rows < count, 0)
    slope = tl.load(slopes + rows * stride, rows < count, 0.0)
    mean = tl.zeros([ROWS, PART], tl.float32)
    for part in range(PARTS):
        mean += _lines(parts + tl.cast(part, tl.int64) * count * E, rows, count, 0, E, PART)
    df = (mean - _lines(table, target, size, 0, E, PART)) * slope[:, None]
    inside = (rows < count)[:, None] & (columns < E)[None, :]
    tl.store(out + rows[:, None].to(tl.int64) * E + columns[None, :], df, inside)


@triton.jit
def _slopes_kernel(
    features, table, bias, targets, totals, slopes, stride, written, sums, count, size, skipped, width,
    E: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """dlogits of a tile, from word `skipped` on, to written [N, width], and their sums over the tile's rows."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    first = skipped + tl.program_id(1) * WORDS
    words = skipped + columns
    target, total, slope = _row_facts(targets, totals, slopes, stride, rows, count)
    raised = _biases(bias, words, size) * LOG2E
    logits = _products(features, tl.program_id(0) * ROWS, ROWS, count, table, first, WORDS, size, E, PART)
    p = tl.exp2(logits * LOG2E + (raised[None, :] - (total * LOG2E)[:, None]))
    d = tl.where(words[None, :] == target[:, None], p - 1.0, p) * slope[:, None]
    tl.store(written + rows[:, None].to(tl.int64) * width + columns[None, :], d, (rows < count)[:, None])
    tl.store(sums + tl.program_id(0) * width + columns, tl.sum(d, 0))
