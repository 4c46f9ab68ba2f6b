"""Layers so narrow that all that lies between two attentions fits one program: kernels/layers.py for a small generator,
whose products are done before they are launched.

Everything but attention is done for each token alone, so one launch goes from the attention of a layer to that of the
next (M tokens, D width, F feed-forward width; norms, dropout and GELU as in kernels/norm.py and products.py):

    y   = norm(x + dropout(mixed Wout^T + bout))
    out = norm(y + dropout(GELU(y Wup^T + bup) Wdown^T + bdown))
    qkv = out Wqkv^T + bqkv                                           of the layer above

and one goes back.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from elektron.kernels import attention as attend
from elektron.kernels.counters import keep_scales, token_dropout
from elektron.kernels.gpu import tl, triton
from elektron.kernels.layer import LayerWeights, Setting, unbound
from elektron.kernels.parameters import Factors, add_matrices, add_vectors, are_thin, parts_of
from elektron.kernels.products import added, gelu

_WIDTHS = (32, 64)
_TOKENS = 64
"""Of a program between two attentions."""


class _Kept(NamedTuple):
    """What a layer's backward pass needs."""

    x: Tensor  # [M, D]
    qkv: Tensor  # [M, 3D]
    sums: Tensor  # of the attention's exponentials
    mixed: Tensor  # [M, D]
    attended: Tensor  # [M, D] y
    attended_unit: Tensor  # [M, D]
    attended_scale: Tensor  # [M]
    bent: Tensor  # [M, F]
    slope: Tensor  # [M, F]
    fed: Tensor  # [M, D] the layer's result
    fed_unit: Tensor  # [M, D]
    fed_scale: Tensor  # [M]


def fits(width: int, feedforward_width: int) -> bool:
    return width in _WIDTHS and are_thin(width, feedforward_width)


class NarrowLayers(torch.autograd.Function):
    """Takes and gives what `_Layers` of kernels/layers.py does, and is checked by the same tests."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        layers: list[LayerWeights],
        mask: Tensor | None,
        noise: list[Tensor | None],
        setting: Setting,
        is_learning: bool,
        *_parameters: Tensor,
    ) -> Tensor:
        ctx.parts = layers, mask, noise, setting
        ctx.kept = []
        current = x.flatten(0, 1)
        qkv = torch.addmm(layers[0].qkv_bias, current, layers[0].qkv.t())
        for number, (weights, keys) in enumerate(zip(layers, noise, strict=True)):
            above = layers[number + 1] if number + 1 < len(layers) else None
            kept, next_qkv = _forward(current, qkv, weights, above, mask, unbound(keys), setting, x.shape)
            if is_learning:
                ctx.kept.append((current, qkv) if setting.recompute else kept)
            current, qkv = kept.fed, next_qkv
        return current.view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad = grad.contiguous()
        layers, mask, noise, setting = ctx.parts
        rows, length, width = grad.shape
        tokens, wide = rows * length, len(layers[0].up)
        norms = grad.new_empty(len(layers), triton.cdiv(tokens, _TOKENS), 4 * width, dtype=torch.float32)
        biases = grad.new_empty(len(layers), parts_of(width, wide), 5 * width + wide, dtype=torch.float32)
        ignored = grad.new_empty(attend.sum_parts(rows, length), 3 * width, dtype=torch.float32)
        residual, qkv_grad = grad.reshape(tokens, width), None
        for number in reversed(range(len(layers))):
            kept, weights, keys = ctx.kept.pop(), layers[number], unbound(noise[number])
            if setting.recompute:
                kept, _ = _forward(*kept, weights, None, mask, keys, setting, grad.shape)
            of_probabilities, *of_sums = keys
            above = layers[number + 1] if number + 1 < len(layers) else None
            found = _between_backward(residual, qkv_grad, kept, weights, above, of_sums, setting, length, norms[number])
            residual = found.residual
            qkv_grad = attend.attention_backward(
                *(found.mixed.view(grad.shape), kept.qkv.view(rows, length, -1), kept.mixed.view(grad.shape)),
                *(kept.sums, setting.heads, mask, setting.attention_rate, of_probabilities, ignored),
            ).view(tokens, -1)
            add_matrices(
                Factors(
                    *(qkv_grad, kept.x, found.attended, kept.mixed),
                    *(found.bent, kept.attended, found.fed, kept.bent),
                ),
                weights,
                biases[number],
            )
            setting.tell(weights)
        _add_vectors(layers, added(norms), added(biases))
        assert qkv_grad is not None
        residual.addmm_(qkv_grad, layers[0].qkv)
        return residual.view(grad.shape), *[None] * (len(ctx.needs_input_grad) - 1)


class _Gradients(NamedTuple):
    residual: Tensor  # [M, D] of the layer's input, but for what comes through its qkv
    mixed: Tensor  # [M, D]
    attended: Tensor  # [M, D] of the attention's product
    bent: Tensor  # [M, F] of the feed-forward's first product
    fed: Tensor  # [M, D] of its second


def _forward(
    x: Tensor,
    qkv: Tensor,
    w: LayerWeights,
    above: LayerWeights | None,
    mask: Tensor | None,
    keys: tuple[Tensor | None, ...],
    setting: Setting,
    shape: torch.Size,
) -> tuple[_Kept, Tensor]:
    """What a layer keeps, and the qkv of the layer above, if there is one."""
    rows, length, width = shape
    of_probabilities, *of_sums = keys
    mixed, sums = attend.attention_forward(
        qkv.view(rows, length, -1), setting.heads, mask, setting.attention_rate, of_probabilities
    )
    return _between(x, qkv, sums, mixed.view(-1, width), w, above, of_sums, setting, length)


def _between(
    x: Tensor,
    qkv: Tensor,
    sums: Tensor,
    mixed: Tensor,
    w: LayerWeights,
    above: LayerWeights | None,
    keys: list[Tensor | None],
    setting: Setting,
    length: int,
) -> tuple[_Kept, Tensor]:
    (tokens, width), wide = x.shape, len(w.up)
    attended, attended_unit, fed, fed_unit = (torch.empty_like(x) for _ in range(4))
    attended_scale, fed_scale = x.new_empty(2, tokens, dtype=torch.float32)
    bent, slope = x.new_empty(2, tokens, wide)
    next_qkv = torch.empty_like(qkv)
    top = above or w
    _between_kernel[(triton.cdiv(tokens, _TOKENS),)](
        *(mixed, x, w.out, w.out_bias, w.attention_gain, w.attention_shift, w.up, w.up_bias, w.down, w.down_bias),
        *(w.feedforward_gain, w.feedforward_shift, top.qkv, top.qkv_bias),
        *(attended, attended_unit, attended_scale, bent, slope, fed, fed_unit, fed_scale, next_qkv),
        *(*_given(keys, x), tokens, length, setting.epsilon),
        **token_dropout(setting.rate, keys[0]),
        IS_LAST=above is None,
        WIDTH=width,
        WIDE=wide,
        CHUNK=width,
        TOKENS=_TOKENS,
        num_warps=4,
    )
    attention = attended, attended_unit, attended_scale
    return _Kept(x, qkv, sums, mixed, *attention, bent, slope, fed, fed_unit, fed_scale), next_qkv


def _between_backward(
    residual: Tensor,
    qkv: Tensor | None,
    kept: _Kept,
    w: LayerWeights,
    above: LayerWeights | None,
    keys: list[Tensor | None],
    setting: Setting,
    length: int,
    sums: Tensor,
) -> _Gradients:
    """From the gradients of the layer above's input, and of its qkv if there is one, to those of `mixed`. `sums`
    [P, 4D] get the partial sums of both norms' gains and shifts."""
    tokens, width = residual.shape
    found = _Gradients(*(torch.empty_like(t) for t in (residual, residual, residual, kept.bent, residual)))
    _between_backward_kernel[(len(sums),)](
        *(residual, residual if qkv is None else qkv, (above or w).qkv),
        *(w.out, w.attention_gain, w.up, w.down, w.feedforward_gain),
        *(kept.attended_unit, kept.attended_scale, kept.slope, kept.fed_unit, kept.fed_scale, *found, sums),
        *(*_given(keys, residual), tokens, length),
        **token_dropout(setting.rate, keys[0]),
        IS_LAST=qkv is None,
        WIDTH=width,
        WIDE=kept.bent.shape[1],
        CHUNK=width,
        TOKENS=_TOKENS,
        num_warps=4,
    )
    return found


def _add_vectors(layers: list[LayerWeights], norms: Tensor, biases: Tensor) -> None:
    wide, width = layers[0].up.shape
    gain1, shift1, gain2, shift2 = norms.chunk(4, 1)
    qkv, out, up, down = biases.split([3 * width, width, wide, width], 1)
    add_vectors(
        layers,
        attention_gain=gain1,
        attention_shift=shift1,
        feedforward_gain=gain2,
        feedforward_shift=shift2,
        qkv_bias=qkv,
        out_bias=out,
        up_bias=up,
        down_bias=down,
    )


def _given(keys: list[Tensor | None], placeholder: Tensor) -> list[Tensor]:
    return [placeholder if key is None else key for key in keys]


@triton.jit
def _block(matrix, row, column, STRIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS] of a matrix, from `row` and `column` on."""
    return tl.load(matrix + (row + tl.arange(0, ROWS))[:, None] * STRIDE + column + tl.arange(0, COLUMNS)[None, :])


@triton.jit
def _vector(vector, first, SIZE: tl.constexpr):
    return tl.load(vector + first + tl.arange(0, SIZE)).to(tl.float32)[None, :]


@triton.jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _normed(total, epsilon, WIDTH: tl.constexpr):
    """The unit and its scale."""
    centred = total - tl.sum(total, 1)[:, None] / WIDTH
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / WIDTH + epsilon)
    return centred * scale[:, None], scale


@triton.jit
def _own(count, WIDTH: tl.constexpr, TOKENS: tl.constexpr):
    """This program's tokens, the same without those that there are not, its columns, where they lie, and which are."""
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    columns = tl.arange(0, WIDTH)
    places = tokens[:, None] * WIDTH + columns[None, :]
    return tokens, tl.minimum(tokens, count - 1), columns, places, (tokens < count)[:, None]


@triton.jit
def _between_kernel(
    mixed, x, out, out_bias, gain1, shift1, up, up_bias, down, down_bias, gain2, shift2, qkv, qkv_bias,
    attended, attended_unit, attended_scale, bent, slope, fed, fed_unit, fed_scale, next_qkv,
    keys1, keys2, count, length, epsilon,
    DROPS: tl.constexpr, LIMIT: tl.constexpr, KEPT_SCALE: tl.constexpr,
    IS_LAST: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    tokens, safe, columns, places, inside = _own(count, WIDTH, TOKENS)
    kind = x.dtype.element_ty
    # attention's product and norm
    added = _dot(tl.load(mixed + places, inside, 0.0), tl.trans(_block(out, 0, 0, WIDTH, WIDTH, WIDTH)))
    added += _vector(out_bias, 0, WIDTH)
    if DROPS:
        added *= keep_scales(keys1, safe, columns, length, WIDTH, LIMIT, KEPT_SCALE)
    unit, scale = _normed(tl.load(x + places, inside, 0.0).to(tl.float32) + added, epsilon, WIDTH)
    y = (unit * _vector(gain1, 0, WIDTH) + _vector(shift1, 0, WIDTH)).to(kind)
    tl.store(attended_unit + places, unit.to(kind), inside)
    tl.store(attended_scale + tokens, scale, tokens < count)
    tl.store(attended + places, y, inside)
    # feed-forward
    added = tl.zeros((TOKENS, WIDTH), tl.float32) + _vector(down_bias, 0, WIDTH)
    for first in range(0, WIDE, CHUNK):
        u = _dot(y, tl.trans(_block(up, first, 0, WIDTH, CHUNK, WIDTH))) + _vector(up_bias, first, CHUNK)
        value, slopes = gelu(u)
        value = value.to(kind)
        wide_places = tokens[:, None] * WIDE + first + tl.arange(0, CHUNK)[None, :]
        tl.store(bent + wide_places, value, inside)
        tl.store(slope + wide_places, slopes.to(kind), inside)
        added += _dot(value, tl.trans(_block(down, 0, first, WIDE, WIDTH, CHUNK)))
    if DROPS:
        added *= keep_scales(keys2, safe, columns, length, WIDTH, LIMIT, KEPT_SCALE)
    unit, scale = _normed(y.to(tl.float32) + added, epsilon, WIDTH)
    y = (unit * _vector(gain2, 0, WIDTH) + _vector(shift2, 0, WIDTH)).to(kind)
    tl.store(fed_unit + places, unit.to(kind), inside)
    tl.store(fed_scale + tokens, scale, tokens < count)
    tl.store(fed + places, y, inside)
    # the layer above
    if not IS_LAST:
        for part in range(3):
            product = _dot(y, tl.trans(_block(qkv, part * WIDTH, 0, WIDTH, WIDTH, WIDTH)))
            product += _vector(qkv_bias, part * WIDTH, WIDTH)
            tl.store(next_qkv + tokens[:, None] * 3 * WIDTH + part * WIDTH + columns, product.to(kind), inside)


@triton.jit
def _norm_backward(given, unit, scale, gain, sums, places, tokens, inside, count, WIDTH: tl.constexpr):
    """Through a norm; `sums` get those of its gain and shift."""
    normal = tl.load(unit + places, inside, 0.0).to(tl.float32)
    scales = tl.load(scale + tokens, tokens < count, 0.0)
    gained = given * _vector(gain, 0, WIDTH)
    mean = tl.sum(gained, 1)[:, None] / WIDTH
    along = tl.sum(gained * normal, 1)[:, None] / WIDTH
    columns = tl.arange(0, WIDTH)
    tl.store(sums + columns, tl.sum(given * normal, 0))
    tl.store(sums + WIDTH + columns, tl.sum(given, 0))
    return (gained - mean - normal * along) * scales[:, None]


@triton.jit
def _between_backward_kernel(
    residual, qkv_grad, qkv, out, gain1, up, down, gain2,
    attended_unit, attended_scale, slope, fed_unit, fed_scale,
    residual_grad, mixed_grad, attended_grad, bent_grad, fed_grad, sums,
    keys1, keys2, count, length,
    DROPS: tl.constexpr, LIMIT: tl.constexpr, KEPT_SCALE: tl.constexpr,
    IS_LAST: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    tokens, safe, columns, places, inside = _own(count, WIDTH, TOKENS)
    kind = residual.dtype.element_ty
    sums += tl.program_id(0) * 4 * WIDTH
    # the layer above
    given = tl.load(residual + places, inside, 0.0).to(tl.float32)
    if not IS_LAST:
        for part in range(3):
            of_part = tl.load(qkv_grad + tokens[:, None] * 3 * WIDTH + part * WIDTH + columns, inside, 0.0)
            given += _dot(of_part, _block(qkv, part * WIDTH, 0, WIDTH, WIDTH, WIDTH))
    # feed-forward
    given = _norm_backward(given, fed_unit, fed_scale, gain2, sums + 2 * WIDTH, places, tokens, inside, count, WIDTH)
    branch = given
    if DROPS:
        branch = given * keep_scales(keys2, safe, columns, length, WIDTH, LIMIT, KEPT_SCALE)
    branch = branch.to(kind)
    tl.store(fed_grad + places, branch, inside)
    for first in range(0, WIDE, CHUNK):
        wide_places = tokens[:, None] * WIDE + first + tl.arange(0, CHUNK)[None, :]
        bent = _dot(branch, _block(down, 0, first, WIDE, WIDTH, CHUNK))
        bent = (bent * tl.load(slope + wide_places, inside, 0.0).to(tl.float32)).to(kind)
        tl.store(bent_grad + wide_places, bent, inside)
        given += _dot(bent, _block(up, first, 0, WIDTH, CHUNK, WIDTH))
    # attention's norm and product
    given = _norm_backward(given, attended_unit, attended_scale, gain1, sums, places, tokens, inside, count, WIDTH)
    tl.store(residual_grad + places, given.to(kind), inside)
    if DROPS:
        given *= keep_scales(keys1, safe, columns, length, WIDTH, LIMIT, KEPT_SCALE)
    branch = given.to(kind)
    tl.store(attended_grad + places, branch, inside)
    tl.store(mixed_grad + places, _dot(branch, _block(out, 0, 0, WIDTH, WIDTH, WIDTH)).to(kind), inside)
