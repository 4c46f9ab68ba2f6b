"""The gradients of a layer's matrices in one launch against the products that they are."""

import pytest
import torch

from elektron.kernels import parameters
from elektron.kernels.layer import LayerWeights
from elektron.kernels.parameters import Aside, Factors, add_matrices, are_thin, parts_of

DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]


def make_layer(width: int, wide: int, dtype: torch.dtype, device: torch.device) -> LayerWeights:
    shapes = {"qkv": (3 * width, width), "out": (width, width), "up": (wide, width), "down": (width, wide)}
    return LayerWeights(
        *(
            torch.nn.Parameter(torch.zeros(shapes.get(name, ()), dtype=dtype, device=device))
            for name in LayerWeights._fields
        )
    )


def make_factors(tokens: int, width: int, wide: int, dtype: torch.dtype, device: torch.device) -> Factors:
    widths = {"qkv": 3 * width, "bent": wide, "value": wide}
    return Factors(*(torch.randn(tokens, widths.get(name, width), device=device).to(dtype) for name in Factors._fields))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("tokens", "width", "wide"), [(1, 32, 32), (300, 32, 96), (257, 64, 256), (200, 128, 128), (130, 256, 512)]
)
def test_matrices_get_their_products(dtype, tokens, width, wide, device):
    assert are_thin(width, wide)
    layer, factors = make_layer(width, wide, dtype, device), make_factors(tokens, width, wide, dtype, device)
    biases = torch.full((parts_of(width, wide), 5 * width + wide), torch.nan, device=device)
    for wanted in (biases, None):  # products are added to what is there
        add_matrices(factors, layer, wanted)
    matrices = layer.qkv, layer.out, layer.up, layer.down
    for matrix, left, right in zip(matrices, factors[::2], factors[1::2], strict=True):
        assert matrix.grad is not None
        assert matrix.grad.dtype == torch.float32
        expected = 2 * left.double().T @ right.double()
        assert (matrix.grad - expected).norm() <= 1e-5 * expected.norm()
    sums = torch.cat([left.double().sum(0) for left in factors[::2]])
    assert (biases.sum(0) - sums).norm() <= 1e-5 * sums.norm()


@pytest.mark.parametrize(
    ("processors", "width"), [(1, 32), (7, 32), (100, 32), (1, 64), (1, 128), (1, 256)]
)  # one part: a program has several blocks in flight, which must fit
def test_however_many_parts(processors, width, device, monkeypatch):
    monkeypatch.setattr(parameters, "PROCESSORS", processors)
    test_matrices_get_their_products(torch.float16, 1000, width, 2 * width, device)


def test_a_gpu_that_does_not_load_blocks(device, monkeypatch):
    monkeypatch.setattr(parameters, "loads_blocks", lambda tensor: False)
    test_matrices_get_their_products(torch.float16, 300, 32, 96, device)


@pytest.mark.parametrize("width", [32, 96])
def test_on_a_stream_of_their_own(width, device):
    """The same, bit for bit, though the factors are forgotten at once."""
    layers = [make_layer(width, 2 * width, torch.float16, device) for _ in range(2)]
    aside = Aside(device)
    for number in range(4):
        torch.manual_seed(number)
        factors = make_factors(700, width, 2 * width, torch.float16, device)
        add_matrices(factors, layers[0])
        if aside._stream is not None:
            with torch.cuda.stream(aside._stream):
                torch.cuda._sleep(1 << 22)  # cycles: whoever does not wait for it comes first
        aside.add_matrices(factors, layers[1])
        del factors
        torch.full((700 * width,), torch.nan, dtype=torch.float16, device=device)  # where a factor may have been
    aside.join()
    for here, there in zip(*layers, strict=True):
        if here.ndim == 2:
            assert torch.equal(here.grad, there.grad)
