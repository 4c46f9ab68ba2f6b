import pytest
import torch

from elektron.kernels.counters import fold, row_keys
from elektron.kernels.masking import _corrupted, _masked, _Picked, corrupt, mask, plainly_corrupted, plainly_masked

CLS, SEP, MASK, SIZE = 2, 3, 4, 50
SHAPES = [(1, 1, 1), (3, 7, 1), (4, 16, 5), (2, 128, 19), (3, 130, 32), (1, 300, 77)]


def rows(height, length, device):
    """Full of ends, so that some rows have too few ordinary tokens."""
    original = torch.randint(5, SIZE, (height, length))
    original[:, -1] = SEP
    original[:, 0] = CLS
    original[0] = torch.where(torch.rand(length) < 0.9, SEP, original[0])
    keys = row_keys(int(torch.randint(1 << 30, ())), 0, torch.arange(height, dtype=torch.int32, device=device))
    return original.to(device), fold(keys, 0), fold(keys, 1)


def poisoned(monkeypatch):
    empty_like, new_empty = torch.empty_like, torch.Tensor.new_empty
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: empty_like(*args, **kwargs).fill_(True))
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *args, **kwargs: new_empty(*args, **kwargs).fill_(99))


@pytest.mark.parametrize("keep_rate", [0.0, 0.15, 1.0])
@pytest.mark.parametrize(("height", "length", "count"), SHAPES)
def test_masked_rows(height, length, count, keep_rate, device, monkeypatch):
    torch.manual_seed(length)
    original, *keys = rows(height, length, device)
    expected = plainly_masked(original, CLS, SEP, MASK, count, "without-replacement", keep_rate, *keys)
    poisoned(monkeypatch)
    found = _masked(original, CLS, SEP, MASK, count, keep_rate, *keys)
    assert all(torch.equal(one, two) and one.dtype == two.dtype for one, two in zip(found, expected, strict=True))


@pytest.mark.parametrize("draws", ["without-replacement", "with-replacement"])
@pytest.mark.parametrize(("height", "length", "count"), SHAPES)
def test_corrupted_rows(height, length, count, draws, device, monkeypatch):
    torch.manual_seed(length)
    original, *keys = rows(height, max(length, 4), device)
    original[:, 1:3] = 7  # with replacement, something must be there to draw
    positions, targets, _ = plainly_masked(original, CLS, SEP, MASK, count, draws, 0.0, *keys)
    sampled = torch.randint_like(targets, SIZE)
    sampled = torch.where(sampled % 3 == 0, targets, sampled)
    expected = plainly_corrupted(original, positions, sampled)
    poisoned(monkeypatch)
    found = _corrupted(original, positions, sampled.flatten())
    assert all(torch.equal(one, two) and one.dtype == two.dtype for one, two in zip(found, expected, strict=True))


def test_the_kernel_keeps_what_lies_on_the_limit(device):
    """The share of kept tokens is compared in float32 by both."""
    torch.manual_seed(0)
    original, *keys = rows(2, 128, device)
    for rate in torch.rand(20).double().tolist():
        expected = plainly_masked(original, CLS, SEP, MASK, 100, "without-replacement", rate, *keys)
        found = _masked(original, CLS, SEP, MASK, 100, rate, *keys)
        assert torch.equal(found.masked, expected.masked)


@pytest.mark.parametrize("draws", ["without-replacement", "with-replacement"])
def test_masking_and_corrupting(draws):
    original, *keys = rows(3, 20, "cpu")
    original[:, 1:9] = 7
    positions, targets, masked = mask(original, CLS, SEP, MASK, 5, draws, 0.0, *keys)
    assert torch.equal(original.gather(1, positions), targets)
    assert (masked == MASK).any(1).all()
    assert torch.equal(masked != original, original.clone().scatter_(1, positions, MASK) != original)
    corrupted, replaced = corrupt(original, positions, targets)
    assert torch.equal(corrupted, original)
    assert not replaced.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "length", "count", "width"), [(3, 11, 2, 32), (2, 130, 20, 70), (1, 1, 1, 16)])
def test_states_are_picked_and_their_gradients_put_back(rows, length, count, width, dtype, device):
    """Also where a position comes several times."""
    hidden = torch.randn(rows, length, width, dtype=dtype)
    positions = torch.randint(0, length, (rows, count)).sort().values
    pull = torch.randn(rows, count, width, dtype=dtype)
    exact = hidden.double().requires_grad_()
    expected = exact.gather(1, positions[..., None].expand(-1, -1, width))
    expected.backward(pull.double())
    given = hidden.to(device).requires_grad_()
    found = _Picked.apply(given, positions.to(device))
    assert torch.equal(found.cpu(), expected.to(dtype))
    found.backward(pull.to(device))
    assert given.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(given.grad.double().cpu(), exact.grad, rtol=2e-3, atol=2e-3)
