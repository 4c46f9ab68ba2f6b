"""Products with gradients of their own, and the GELU they use."""

import pytest
import torch
import torch.nn.functional as F

from elektron.kernels import products
from elektron.kernels.products import _GeluLinear, _Linear, added, bend, column_sums, gelu_linear, unbend, unbend_parts

DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def near(found, expected, dtype):
    assert (found.double().cpu() - expected.double().cpu()).norm() <= TOLERANCE[dtype] * expected.double().norm()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wide", [32, 96, 192])  # thin, and not
@pytest.mark.parametrize("tokens", [1, 130])
def test_gelu_before_and_after_a_product(dtype, wide, tokens, device):
    x, w, g, v = (
        torch.randn(*s, dtype=torch.float64) for s in ((tokens, wide), (64, wide), (tokens, wide), (wide, 64))
    )
    bias = torch.randn(64, dtype=torch.float64)
    u = (x @ w.T / 4 + bias).requires_grad_()
    F.gelu(u).sum().backward()
    assert u.grad is not None
    found = bend(*(tensor.to(device, dtype) for tensor in (x, w / 4, bias)))
    near(found.value, F.gelu(u.detach()), dtype)
    near(found.slope, u.grad, dtype)
    weight = v.to(device, dtype)
    sums = torch.full((unbend_parts(weight, tokens), 64), torch.nan, device=device)
    bent = unbend(g.to(device, dtype), weight, u.grad.to(device, dtype), sums)
    near(bent, (g @ v) * u.grad, dtype)
    near(sums.sum(0), ((g @ v) * u.grad).sum(0), dtype)


def test_a_gpu_with_little_room(device, monkeypatch):
    """Where the weights of a thin product cannot stay on chip, it is made as a wide one."""
    monkeypatch.setattr(products, "has_room", lambda tensor, kilobytes: False)
    test_gelu_before_and_after_a_product(DTYPES[-1], 32, 130, device)


def test_a_gpu_that_does_not_load_blocks(device, monkeypatch):
    """The library multiplies."""
    monkeypatch.setattr(products, "loads_blocks", lambda tensor: False)
    test_gelu_before_and_after_a_product(DTYPES[-1], 32, 130, device)


@pytest.mark.parametrize(("function", "plain"), [(_Linear, F.linear), (_GeluLinear, lambda *a: F.gelu(F.linear(*a)))])
def test_gradients_are_those_of_the_plain_function(function, plain, device):
    dtype = DTYPES[-1]
    given = [torch.randn(*shape, dtype=torch.float64) for shape in ((140, 32), (64, 32), (64,))]
    exact = [tensor.clone().requires_grad_() for tensor in given]
    ours = [tensor.to(device, dtype).requires_grad_() for tensor in given]
    pull = torch.randn(64, dtype=torch.float64)  # one line of memory for all tokens
    plain(*exact).backward(pull.expand(140, 64))
    out = function.apply(*ours)
    out.backward(pull.to(device, dtype).expand(140, 64))
    near(out.detach(), plain(*given), dtype)
    for found, expected in zip(ours, exact, strict=True):
        near(found.grad, expected.grad, dtype)
    assert [tensor.grad.dtype for tensor in ours[1:] if tensor.grad is not None] == [torch.float32] * 2


def test_no_tokens_are_no_trouble(device, monkeypatch):
    monkeypatch.setattr(products, "runs_on", lambda tensor: True)
    x, weight, bias = (torch.randn(*shape, device=device, dtype=torch.float16) for shape in ((0, 32), (64, 32), (64,)))
    assert gelu_linear(x, weight, bias).shape == (0, 64)


def test_sums(device):
    x = torch.randn(300, 70, device=device)
    torch.testing.assert_close(column_sums(x), x.sum(0), rtol=1e-4, atol=1e-4)
    parts = torch.randn(3, 130, 50, device=device)
    torch.testing.assert_close(added(parts), parts.sum(1), rtol=1e-4, atol=1e-4)


def test_gelu_is_gelu_everywhere(device):
    u = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-1e4, -100.0, -40.0, 40.0, 100.0, 1e4])]).to(device)
    found = products._bend_after(u.clone()[None])
    exact = u.double().cpu().requires_grad_()
    expected = F.gelu(exact)
    expected.sum().backward()
    assert exact.grad is not None
    error = (found.value[0].double().cpu() - expected.detach()).abs()
    assert (error <= 1e-4 + 1e-6 * exact.detach().abs()).all()
    assert (found.slope[0].double().cpu() - exact.grad).abs().max() < 1e-4
