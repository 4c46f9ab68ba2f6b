"""The layers of an encoder, forward and backward by hand: what `Layer` of model/encoder.py says in plain PyTorch, in
seven launches for a layer and nine back, or some more where it is wide.

    qkv   = x Wqkv^T + bqkv
    mixed = attention(qkv)
    y     = norm(x + dropout(mixed Wout^T + bout))
    out   = norm(y + dropout(GELU(y Wup^T + bup) Wdown^T + bdown))

Autograd would keep more than is needed, launch an addition for each parameter and pass over every tensor once more.
Where two gradients meet, the next norm adds them as it reads them. Those of parameters are in kernels/parameters.py.

Shapes in comments: B rows, T tokens of a row, M = B * T, D width, F feed-forward width, L layers, P programs.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from elektron.kernels import attention as attend
from elektron.kernels import narrow, products
from elektron.kernels.gpu import runs_on
from elektron.kernels.layer import LayerWeights, Setting, unbound
from elektron.kernels.norm import Normed, add_norm, add_norm_backward, norm_programs
from elektron.kernels.parameters import Aside, Factors, add_vectors
from elektron.kernels.products import added, bend, unbend


class _Kept(NamedTuple):
    """What a layer's backward pass needs."""

    x: Tensor  # [M, D]
    qkv: Tensor  # [M, 3D]
    sums: Tensor  # of the attention's exponentials
    mixed: Tensor  # [M, D]
    attended: Normed
    up: products.Bent
    fed: Normed


class _VectorSums(NamedTuple):
    """The gradients of the vectors of L layers, in P parts."""

    qkv: Tensor  # [L, P, 3D]
    attention: Tensor  # [L, P, 3D] gain, shift and bias
    up: Tensor  # [L, P, F]
    feedforward: Tensor  # [L, P, 3D]


def fits(x: Tensor, setting: Setting, up: Tensor) -> bool:
    """Whether the kernels can run layers whose feed-forward part begins with the weight `up`."""
    head = x.shape[-1] // setting.heads
    return runs_on(x) and x.dtype == up.dtype and products.fits(*up.shape) and attend.fits(x, head)


def run_layers(
    x: Tensor, layers: list[LayerWeights], mask: Tensor | None, noise: list[Tensor | None], setting: Setting
) -> Tensor:
    """[B, T, D] -> [B, T, D]; `mask` is true where a token may be seen (see `attention`); `noise` has [3, B] keys for
    each layer: of the attention's probabilities, its output and the feed-forward part's."""
    function = narrow.NarrowLayers if narrow.fits(x.shape[-1], len(layers[0].up)) else _Layers
    given = x.contiguous(), layers, mask, noise, setting, torch.is_grad_enabled()
    parameters = [tensor for weights in layers for tensor in weights]  # autograd is to see that they learn
    return function.apply(*given, *parameters)  # pyright: ignore[reportReturnType]


class _Layers(torch.autograd.Function):
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
        ctx.kept, ctx.shape = [], x.shape
        current = x.flatten(0, 1)
        for weights, keys in zip(layers, noise, strict=True):
            kept = _forward(current, weights, mask, unbound(keys), setting, x.shape)
            if is_learning:
                ctx.kept.append(current if setting.recompute else kept)
            current = kept.fed.out
        return current.view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad = grad.contiguous()
        layers, mask, noise, setting = ctx.parts
        sums, aside = _empty_sums(layers, ctx.shape, grad.device), Aside(grad.device)
        current, other = grad.reshape(-1, ctx.shape[-1]), None
        for number in reversed(range(len(layers))):
            weights, keys, kept = layers[number], unbound(noise[number]), ctx.kept.pop()
            if setting.recompute:
                kept = _forward(kept, weights, mask, keys, setting, ctx.shape)
            of_layer = _VectorSums(*(parts[number] for parts in sums))
            current, other, factors = _backward(current, other, kept, weights, mask, keys, setting, ctx.shape, of_layer)
            aside.add_matrices(factors, weights)
            if number + 1 < len(layers):
                setting.tell(layers[number + 1])  # for whose matrices this stream has waited by now
        _add_vectors(layers, _VectorSums(*(added(parts) for parts in sums)))
        aside.join()
        setting.tell(layers[0])
        current = current if other is None else current + other
        return current.view(ctx.shape), *[None] * (len(ctx.needs_input_grad) - 1)


def _forward(
    x: Tensor,
    w: LayerWeights,
    mask: Tensor | None,
    keys: tuple[Tensor | None, ...],
    setting: Setting,
    shape: torch.Size,
) -> _Kept:
    rows, length, width = shape
    of_probabilities, of_attention, of_feedforward = keys
    qkv = torch.addmm(w.qkv_bias, x, w.qkv.t())
    mixed, sums = attend.attention_forward(
        qkv.view(rows, length, -1), setting.heads, mask, setting.attention_rate, of_probabilities
    )
    mixed = mixed.view(-1, width)
    attended = add_norm(
        *(x, mixed @ w.out.t(), w.out_bias, w.attention_gain, w.attention_shift, setting.epsilon, length),
        *(setting.rate, of_attention),
    )
    up = bend(attended.out, w.up, w.up_bias)
    fed = add_norm(
        *(attended.out, up.value @ w.down.t(), w.down_bias, w.feedforward_gain, w.feedforward_shift),
        *(setting.epsilon, length, setting.rate, of_feedforward),
    )
    return _Kept(x, qkv, sums, mixed, attended, up, fed)


def _backward(
    grad: Tensor,
    other: Tensor | None,
    kept: _Kept,
    w: LayerWeights,
    mask: Tensor | None,
    keys: tuple[Tensor | None, ...],
    setting: Setting,
    shape: torch.Size,
    sums: _VectorSums,
) -> tuple[Tensor, Tensor, Factors]:
    """From the gradient of a layer's result to that of its input, both as two terms that the next norm adds, and what
    the gradients of its matrices are made of."""
    rows, length, _ = shape
    of_probabilities, of_attention, of_feedforward = keys
    # feed-forward
    grad, fed = add_norm_backward(
        grad, other, kept.fed, w.feedforward_gain, length, setting.rate, of_feedforward, sums.feedforward
    )
    bent = unbend(fed, w.down, kept.up.slope, sums.up)
    # attention
    grad, attended = add_norm_backward(
        grad, bent @ w.up, kept.attended, w.attention_gain, length, setting.rate, of_attention, sums.attention
    )
    qkv = attend.attention_backward(
        *((attended @ w.out).view(shape), kept.qkv.view(rows, length, -1), kept.mixed.view(shape), kept.sums),
        *(setting.heads, mask, setting.attention_rate, of_probabilities, sums.qkv),
    ).view(len(grad), -1)
    factors = Factors(qkv, kept.x, attended, kept.mixed, bent, kept.attended.out, fed, kept.up.value)
    return grad, qkv @ w.qkv, factors


def _empty_sums(layers: list[LayerWeights], shape: torch.Size, device: torch.device) -> _VectorSums:
    (rows, length, width), feedforward_width = shape, len(layers[0].up)
    programs = norm_programs(rows * length, width)
    shapes = [
        (attend.sum_parts(rows, length), 3 * width),
        (programs, 3 * width),
        (products.unbend_parts(layers[0].down, rows * length), feedforward_width),
        (programs, 3 * width),
    ]
    return _VectorSums(*(torch.empty(len(layers), *shape, device=device) for shape in shapes))


def _add_vectors(layers: list[LayerWeights], found: _VectorSums) -> None:
    gain1, shift1, out = found.attention.chunk(3, 1)
    gain2, shift2, down = found.feedforward.chunk(3, 1)
    add_vectors(
        layers,
        qkv_bias=found.qkv,
        out_bias=out,
        attention_gain=gain1,
        attention_shift=shift1,
        up_bias=found.up,
        down_bias=down,
        feedforward_gain=gain2,
        feedforward_shift=shift2,
    )
