"""The layers of an encoder, forward and backward by hand: what `Layer` of model/encoder.py says in plain PyTorch, in
seven launches for a layer and eleven back, or one more each where it is wide.

    qkv   = x Wqkv^T + bqkv
    mixed = attention(qkv)
    y     = norm(x + dropout(mixed Wout^T + bout))
    out   = norm(y + dropout(GELU(y Wup^T + bup) Wdown^T + bdown))

Autograd would keep more than is needed, launch an addition for each parameter and pass over every tensor once more.
Gradients of matrices are added where they belong by the products that make them; those of vectors come as partial sums
from the kernels that pass by anyway, and are added up for all layers at the end.

Shapes in comments: B rows, T tokens of a row, M = B * T, D width, F feed-forward width, L layers, P programs.
"""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from elektron.kernels import attention as attend
from elektron.kernels import narrow, products
from elektron.kernels.gpu import gradient, runs_on
from elektron.kernels.layer import LayerWeights, Setting, unbound
from elektron.kernels.norm import Normed, add_norm, add_norm_backward, norm_programs
from elektron.kernels.products import add_product, added, bend, unbend


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
    """Partial sums of the gradients of a stack's vectors, to be summed over the P in the middle."""

    qkv: Tensor  # [L, P, 3D]
    attention: Tensor  # [L, P, 3, D] of gain, shift and bias
    up: Tensor  # [L, P, F]
    feedforward: Tensor  # [L, P, 3, D]


def fits(x: Tensor, setting: Setting, up: Tensor) -> bool:
    """Whether the kernels can run layers whose feed-forward part begins with the weight `up`."""
    head = x.shape[-1] // setting.heads
    return runs_on(x) and x.dtype == up.dtype and products.fits(*up.shape) and attend.fits(x, head)


def run_layers(
    x: Tensor, layers: list[LayerWeights], mask: Tensor | None, noise: list[Tensor | None], setting: Setting
) -> Tensor:
    """[B, T, D] -> [B, T, D]; `mask` [B, T] is true where a token may be seen; `noise` has [3, B] keys for each layer:
    of the attention's probabilities, its output and the feed-forward part's."""
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
        sums, aside = _empty_sums(layers, ctx.shape, grad.device), _Aside(grad.device)
        current = grad.reshape(-1, ctx.shape[-1])
        for number in reversed(range(len(layers))):
            weights, keys, kept = layers[number], unbound(noise[number]), ctx.kept.pop()
            if setting.recompute:
                kept = _forward(kept, weights, mask, keys, setting, ctx.shape)
            of_layer = _VectorSums(*(tensor[number] for tensor in sums))
            current = _backward(current, kept, weights, mask, keys, setting, ctx.shape, of_layer, aside)
        _add_vectors(layers, sums)
        aside.join()
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
    kept: _Kept,
    w: LayerWeights,
    mask: Tensor | None,
    keys: tuple[Tensor | None, ...],
    setting: Setting,
    shape: torch.Size,
    sums: _VectorSums,
    aside: "_Aside",
) -> Tensor:
    rows, length, _ = shape
    of_probabilities, of_attention, of_feedforward = keys
    # feed-forward
    grad, branch = add_norm_backward(
        grad, kept.fed, w.feedforward_gain, length, setting.rate, of_feedforward, sums.feedforward
    )
    aside.add_product(gradient(w.down), branch, kept.up.value)
    bent = unbend(branch, w.down, kept.up.slope, sums.up)
    aside.join()  # `branch` may be `grad`
    aside.add_product(gradient(w.up), bent, kept.attended.out)
    grad.addmm_(bent, w.up)
    # attention
    grad, branch = add_norm_backward(
        grad, kept.attended, w.attention_gain, length, setting.rate, of_attention, sums.attention
    )
    aside.add_product(gradient(w.out), branch, kept.mixed)
    qkv = attend.attention_backward(
        *((branch @ w.out).view(shape), kept.qkv.view(rows, length, -1), kept.mixed.view(shape), kept.sums),
        *(setting.heads, mask, setting.attention_rate, of_probabilities, sums.qkv),
    ).view(len(grad), -1)
    aside.join()
    aside.add_product(gradient(w.qkv), qkv, kept.x)
    return grad.addmm_(qkv, w.qkv)


class _Aside:
    """Products that nothing in the backward pass waits for, on a stream of their own."""

    _streams: ClassVar[dict[torch.cuda.Stream, torch.cuda.Stream]] = {}

    def __init__(self, device: torch.device) -> None:
        self._stream, self._held = None, []
        if device.type == "cuda":
            here = torch.cuda.current_stream(device)
            if here not in self._streams:
                self._streams[here] = torch.cuda.Stream(device)
            self._stream = self._streams[here]

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        """total += a^T b; neither factor may change before the next `join`."""
        if self._stream is None:
            add_product(total, a, b)
            return
        self._stream.wait_stream(torch.cuda.current_stream(total.device))
        with torch.cuda.stream(self._stream):
            add_product(total, a, b)
        self._held += [a, b]  # or their memory would go to whoever asks next

    def join(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
            self._held.clear()


def _empty_sums(layers: list[LayerWeights], shape: torch.Size, device: torch.device) -> _VectorSums:
    (rows, length, width), feedforward_width = shape, len(layers[0].up)

    def empty(*of_a_layer: int) -> Tensor:
        return torch.empty(len(layers), *of_a_layer, device=device)

    programs = norm_programs(rows * length, width)
    return _VectorSums(
        empty(attend.sum_parts(rows, length), 3 * width),
        empty(programs, 3, width),
        empty(products.unbend_parts(layers[0].down, rows * length), feedforward_width),
        empty(programs, 3, width),
    )


def _add_vectors(layers: list[LayerWeights], sums: _VectorSums) -> None:
    qkv, attention, up, feedforward = (added(parts.flatten(2)) for parts in sums)
    places, found = [], []
    for n, w in enumerate(layers):
        places += [w.attention_gain, w.attention_shift, w.out_bias]
        places += [w.feedforward_gain, w.feedforward_shift, w.down_bias, w.qkv_bias, w.up_bias]
        found += [*attention[n].chunk(3), *feedforward[n].chunk(3), qkv[n], up[n]]
    torch._foreach_add_([gradient(place) for place in places], found)  # pyright: ignore[reportPrivateImportUsage]
