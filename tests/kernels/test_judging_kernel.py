import pytest
import torch

from elektron.kernels.gpu import gradient
from elektron.kernels.judging import Judged, _Judged, judge, plainly_judged

DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def poison(monkeypatch):
    empty, empty_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: empty(*args, **kwargs).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: empty_like(*args, **kwargs).fill_(torch.nan))


def draw(shape, width, dtype, device):
    """Features, and parameters whose gradients are not zero at first; some scores are large."""
    hidden = torch.randn(*shape, width).to(device, dtype).requires_grad_()
    weight, bias = torch.randn(1, width).to(device, dtype), torch.randn(1, device=device)
    for parameter in (weight, bias):
        parameter.requires_grad_().grad_dtype = torch.float32
        parameter.grad = torch.ones_like(parameter, dtype=torch.float32)
    return hidden, weight, bias, (torch.rand(*shape) < 0.3).to(device)


def near(found, expected, tolerance):
    return (found.double() - expected).abs().max().item() <= tolerance * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "width"), [((1,), 1), ((7,), 20), ((3, 50), 256), ((130,), 130), ((4, 37), 1030)])
def test_judgements_and_gradients(shape, width, dtype, device, monkeypatch):
    torch.manual_seed(width)
    hidden, weight, bias, replaced = draw(shape, width, dtype, device)
    exact = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight, bias)]
    expected = plainly_judged(exact[0], exact[1], exact[2], replaced)
    (expected.loss * 0.7).backward()
    with monkeypatch.context() as patch:
        poison(patch)
        found = Judged(*_Judged.apply(hidden, weight, bias, replaced))
        (found.loss * 0.7).backward()
    assert [tensor.requires_grad for tensor in found] == [False, True, False]
    assert [tensor.dtype for tensor in found] == [torch.float32, torch.float32, torch.float64]
    assert near(found.scores, expected.scores, 2e-6)
    assert found.loss.item() == pytest.approx(expected.loss.item(), rel=2e-6)
    assert found.tallies[0].item() == pytest.approx(expected.loss.item(), rel=2e-6)
    assert torch.equal(found.tallies[1:], expected.tallies[1:])
    assert hidden.grad is not None
    assert hidden.grad.dtype == dtype
    assert near(hidden.grad, exact[0].grad, TOLERANCE[dtype])
    assert near(gradient(weight) - 1, gradient(exact[1]), 5e-6)
    assert near(gradient(bias) - 1, gradient(exact[2]), 5e-6)


def test_sums_over_many_programs_repeat(device):
    torch.manual_seed(0)
    hidden, weight, bias, replaced = draw((8300,), 2, torch.float32, device)
    expected = plainly_judged(hidden.detach().double(), weight.detach().double(), bias.detach().double(), replaced)
    grads = []
    for _ in range(2):
        found = Judged(*_Judged.apply(hidden, weight, bias, replaced))
        found.loss.backward()
        assert found.loss.item() == pytest.approx(expected.loss.item(), rel=2e-6)
        assert torch.equal(found.tallies[1:], expected.tallies[1:])
        grads.append((found.loss.detach(), *(gradient(parameter).clone() for parameter in (weight, bias))))
        for parameter in (weight, bias):
            gradient(parameter).fill_(1)
    assert all(torch.equal(one, two) for one, two in zip(*grads, strict=True))


def test_counts():
    """Of four tokens two are replaced and two are flagged, one of them rightly."""
    hidden = torch.tensor([[2.0], [1.0], [-1.0], [-2.0]])
    replaced = torch.tensor([True, False, True, False])
    judged = judge(hidden, torch.ones(1, 1), torch.zeros(1), replaced)
    assert judged.scores.tolist() == [2.0, 1.0, -1.0, -2.0]
    assert judged.tallies.tolist() == [judged.loss.item(), 2, 2, 2, 1]
