from dataclasses import replace

import pytest
import torch

from elektron.kernels import layers, narrow
from elektron.kernels.counters import row_keys
from elektron.model.cost import encoder_activations, kernel_activations
from elektron.model.encoder import Embeddings, Encoder, EncoderConfig
from elektron.model.initial import initialise

SHAPE = EncoderConfig(layers=3, width=128, heads=4, feedforward_width=512, embedding_width=128, positions=128)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("attention_dropout", [0.0, 0.1])
@pytest.mark.parametrize("length", [32, 128])
def test_activations_are_about_what_autograd_keeps(dropout, attention_dropout, length):
    shape = replace(SHAPE, dropout=dropout, attention_dropout=attention_dropout)
    encoder = Encoder(shape, Embeddings(50, shape))
    initialise(encoder, 0)
    weights = {parameter.untyped_storage().data_ptr() for parameter in encoder.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.randint(50, (8, length))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        encoder(tokens, torch.zeros_like(tokens), keys=row_keys(0, 0, torch.arange(8, dtype=torch.int32)))
    expected = tokens.numel() * encoder_activations(shape, length)
    assert sum(kept.values()) == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("width", [128, 32])
def test_kernels_keep_what_is_said(width, recompute, monkeypatch):
    """By the general path and by the narrow one."""
    shape = replace(SHAPE, layers=2, width=width, heads=2, feedforward_width=2 * width, embedding_width=width)
    encoder = Encoder(shape, Embeddings(50, shape))
    contexts = []
    for function in (layers._Layers, narrow.NarrowLayers):

        def noted(ctx, *given, inner=function.forward):
            contexts.append(ctx)
            return inner(ctx, *given)

        monkeypatch.setattr(function, "forward", staticmethod(noted))
    x = torch.randn(2, 16, width, requires_grad=True)
    setting = layers.Setting(2, 1e-12, 0.0, 0.0, recompute)
    weights = [layer.weights for layer in encoder.layers]  # pyright: ignore[reportAttributeAccessIssue]
    layers.run_layers(x, weights, None, [None, None], setting)  # pyright: ignore[reportArgumentType]
    (context,) = contexts
    kept = {t.data_ptr(): t.nbytes for of_layer in context.kept for t in _tensors(of_layer)}
    of_one_layer = kernel_activations(replace(shape, layers=1)) if recompute else 0  # while it is made again
    expected = x.shape[:2].numel() * (kernel_activations(shape, recompute) - of_one_layer) * 2  # here it is in float32
    assert sum(kept.values()) == pytest.approx(expected, rel=0.15)


def _tensors(part):
    return [part] if isinstance(part, torch.Tensor) else [tensor for inner in part for tensor in _tensors(inner)]
