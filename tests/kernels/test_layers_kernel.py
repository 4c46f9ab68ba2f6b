"""The layers by kernels against the plain layers in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from elektron.kernels import norm, parameters, products
from elektron.kernels.counters import fold, row_keys
from elektron.kernels.layer import LayerWeights, Setting
from elektron.kernels.layers import run_layers
from elektron.model.encoder import NORM_EPSILON, EncoderConfig, Layer

DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]
TOLERANCE = {torch.float32: 3e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def make_layers(config: EncoderConfig, seed: int) -> list[Layer]:
    """With vectors that are not all zeros and ones."""
    torch.manual_seed(seed)
    layers = [Layer(config).double() for _ in range(config.layers)]
    for layer in layers:
        for name, parameter in layer.named_parameters():
            deviation = 0.2 if parameter.ndim == 1 else config.width**-0.5
            torch.nn.init.normal_(parameter, 1.0 if name.endswith("norm.weight") else 0.0, deviation)
    return layers


def lowered(layer: Layer, dtype: torch.dtype, device: torch.device) -> LayerWeights:
    return LayerWeights(
        *(
            torch.nn.Parameter(tensor.detach().to(device, torch.float32 if "norm" in name else dtype))
            for name, tensor in zip(NAMES, layer.weights, strict=True)
        )
    )


NAMES = [
    f"{part}.{kind}"
    for part in ("qkv", "out", "attention_norm", "up", "down", "feedforward_norm")
    for kind in ("weight", "bias")
]


def distance(found: Tensor | None, expected: Tensor | None) -> float:
    assert found is not None
    assert expected is not None
    assert not found.isnan().any()
    found, expected = found.double().cpu(), expected.double().cpu()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "rate", "masked", "recompute"),
    [
        ((2, 16, 96), 0.0, False, False),
        ((3, 11, 96), 0.2, True, False),
        ((2, 16, 96), 0.1, False, True),
        ((2, 16, 128), 0.0, False, False),  # thin, but for the feed-forward part
        ((2, 40, 128), 0.1, False, False),  # thin
        ((5, 40, 128), 0.0, False, False),
        ((2, 40, 32), 0.0, False, False),  # narrow
        ((3, 27, 32), 0.2, True, False),
        ((2, 16, 32), 0.1, False, True),
        ((2, 16, 32), 0.1, "views", False),
        ((2, 16, 96), 0.1, "views", True),
    ],
)
def test_layers_are_the_plain_layers(dtype, shape, rate, masked, recompute, device):
    width = shape[-1]
    wide = 64 if shape[1] < 40 else max(64, width)
    config = EncoderConfig(
        layers=2,
        width=width,
        heads=2 if width != 96 else 3,
        feedforward_width=wide,
        dropout=rate,
        attention_dropout=rate,
    )
    layers = make_layers(config, shape[1])
    x = torch.randn(shape)
    pull = torch.randn(shape, dtype=torch.float64)
    mask = torch.arange(shape[1]) < torch.randint(1, shape[1] + 1, (shape[0], 1)) if masked else None
    mask = torch.rand(shape[0], shape[1], shape[1]) < 0.4 if masked == "views" else mask
    keys = row_keys(1, 2, torch.arange(shape[0], dtype=torch.int32))
    noise = [fold(keys, 10 * n + torch.arange(3, dtype=torch.int32)[:, None]) if rate else None for n in range(2)]

    exact = x.double().requires_grad_()
    out = exact
    for layer, layer_noise in zip(layers, noise, strict=True):
        out = layer(out, mask, layer_noise)
    (out * pull).sum().backward()

    weights = [lowered(layer, dtype, device) for layer in layers]
    given = x.to(device, dtype).requires_grad_()
    setting = Setting(config.heads, NORM_EPSILON, rate, rate, recompute)
    on_device = [None if keys is None else keys.to(device) for keys in noise]
    found = torch.tensor(torch.nan)
    for _ in range(2):  # gradients of parameters are added to what is there
        given.grad = None
        found = run_layers(given, weights, None if mask is None else mask.to(device), on_device, setting)
        (found * pull.to(device, dtype)).sum().backward()

    tolerance = TOLERANCE[dtype]
    assert distance(found.detach(), out.detach()) < tolerance
    assert distance(given.grad, exact.grad) < tolerance
    for layer, of_layer in zip(layers, weights, strict=True):
        for name, parameter, expected in zip(NAMES, of_layer, layer.weights, strict=True):
            assert parameter.grad is not None
            assert parameter.grad.dtype == torch.float32
            assert distance(parameter.grad / 2, expected.grad) < tolerance, name


@pytest.mark.parametrize("width", [96, 32])
def test_layers_made_again_are_the_same(width, device):
    """To the last bit, dropout and all."""
    heads = 3 if width == 96 else 2
    config = EncoderConfig(layers=3, width=width, heads=heads, feedforward_width=2 * width)
    keys = row_keys(1, 2, torch.arange(2, dtype=torch.int32)).to(device)
    places = torch.arange(3, dtype=torch.int32, device=device)[:, None]
    noise: list[Tensor | None] = [fold(keys, 10 * n + places) for n in range(3)]
    x, pull = torch.randn(2, 2, 16, width).to(device, DTYPES[-1])
    grads = []
    for recompute in (False, True):
        weights = [lowered(layer, DTYPES[-1], device) for layer in make_layers(config, 0)]
        given = x.clone().requires_grad_()
        run_layers(given, weights, None, noise, Setting(heads, 1e-12, 0.1, 0.1, recompute)).backward(pull)
        grads.append([given.grad, *(parameter.grad for of_layer in weights for parameter in of_layer)])
    for kept, made_again in zip(*grads, strict=True):
        assert kept is not None
        assert torch.equal(kept, made_again)


@pytest.mark.parametrize("width", [96, 128, 32])
def test_a_matrix_is_told_of_when_its_gradient_is_there(width, device):
    """All of it, and on the stream that goes on; layer by layer, while layers below are still to come."""
    heads = 3 if width == 96 else 2
    config = EncoderConfig(layers=3, width=width, heads=heads, feedforward_width=2 * width)
    weights = [lowered(layer, DTYPES[-1], device) for layer in make_layers(config, 0)]
    numbers = {id(matrix): n for n, of_layer in enumerate(weights) for matrix in of_layer.matrices}
    told: list[tuple[int, Tensor, bool]] = []

    def note(matrix: Tensor) -> None:
        assert matrix.grad is not None
        told.append((id(matrix), matrix.grad.clone(), weights[0].qkv.grad is None))

    x, pull = torch.randn(2, 2, 16, width).to(device, DTYPES[-1])
    setting = Setting(heads, 1e-12, 0.0, 0.0, False, note)
    run_layers(x.requires_grad_(), weights, None, [None] * 3, setting).backward(pull)
    assert [numbers[place] for place, _, _ in told] == [2] * 4 + [1] * 4 + [0] * 4
    final = {id(matrix): matrix.grad for of_layer in weights for matrix in of_layer.matrices}
    for place, seen, _ in told:
        assert distance(seen, final[place]) == 0
    assert told[0][2]  # the first layer had no gradient yet


@pytest.mark.parametrize("width", [96, 128, 32])
def test_programs_take_turns(width, device, monkeypatch):
    """More tokens than programs take at once: every loop over tokens goes round several times."""
    monkeypatch.setattr(norm, "_PROGRAMS", 2)
    monkeypatch.setattr(products, "PROCESSORS", 1)
    monkeypatch.setattr(parameters, "PROCESSORS", 1)
    test_layers_are_the_plain_layers(
        DTYPES[-1 if device.type == "cuda" else 0], (5, 40, width), 0.1, True, False, device
    )


@pytest.mark.parametrize("width", [96, 32])
def test_layers_learn_whatever_comes_and_goes(width, device):
    """An input without gradient, and a gradient that is one line of memory for all tokens."""
    config = EncoderConfig(layers=1, width=width, heads=2, feedforward_width=2 * width, dropout=0, attention_dropout=0)
    config = replace(config, heads=3) if width == 96 else config
    grads = []
    for shared in (True, False):
        weights = [lowered(layer, DTYPES[-1], device) for layer in make_layers(config, 0)]
        torch.manual_seed(1)
        x, pull = torch.randn(2, 16, width), torch.randn(width)
        out = run_layers(x.to(device, DTYPES[-1]), weights, None, [None], Setting(config.heads, 1e-12, 0.0, 0.0, False))
        pull = pull.to(device, DTYPES[-1]).expand(out.shape)
        out.backward(pull if shared else pull.contiguous())
        grads.append([parameter.grad for parameter in weights[0]])
    for shared, whole in zip(*grads, strict=True):
        assert shared is not None
        assert torch.equal(shared, whole)
        assert shared.isfinite().all()


@pytest.mark.parametrize("width", [96, 32])
def test_frozen_parameters_learn_nothing(width, device):
    config = EncoderConfig(layers=1, width=width, heads=1, feedforward_width=2 * width, dropout=0, attention_dropout=0)
    config = replace(config, heads=3) if width == 96 else config
    (weights,) = (lowered(layer, torch.float16, device) for layer in make_layers(config, 0))
    frozen = weights.up, weights.attention_gain, weights.qkv_bias
    for parameter in frozen:
        parameter.requires_grad_(False)
    x = torch.randn(2, 16, width, device=device, dtype=torch.float16)
    run_layers(x, [weights], None, [None], Setting(config.heads, 1e-12, 0.0, 0.0, False)).sum().backward()
    for parameter in weights:
        assert (parameter.grad is None) == any(parameter is other for other in frozen)


def test_nothing_is_kept_when_nothing_is_learned(device):
    config = EncoderConfig(layers=1, width=32, heads=2, feedforward_width=64, dropout=0, attention_dropout=0)
    weights = [lowered(layer, torch.float16, device) for layer in make_layers(config, 0)]
    with torch.no_grad():
        out = run_layers(
            torch.randn(1, 16, 32, device=device, dtype=torch.float16), weights, None, [None],
            Setting(2, NORM_EPSILON, 0.0, 0.0, False),
        )  # fmt: skip
    assert not out.requires_grad
