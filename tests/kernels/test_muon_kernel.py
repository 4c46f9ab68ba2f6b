"""Muon's kernels against their equations in float64."""

import pytest
import torch

from elektron.kernels.muon import follow_, momenta

COUNT = 5000
"""Elements, of two programs and not quite full ones."""
LOW = torch.bfloat16 if torch.cuda.is_available() else torch.float16  # the interpreter cuts bfloat16 off


@pytest.mark.parametrize("clip", [0.0, 0.7, 1e9])
@pytest.mark.parametrize("dtype", [torch.float32, LOW])
def test_momenta_are_the_equation(clip, dtype, device):
    torch.manual_seed(0)
    gradients, first = torch.randn(2, COUNT, device=device)
    found = momenta(gradients, first, gradients.norm(), dtype, beta1=0.95, clip_norm=clip)
    clipping = min(1.0, clip / float(gradients.norm())) if clip else 1.0
    expected = 0.95 * first.double() + 0.05 * clipping * gradients.double()
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("low", [torch.float32, LOW])
def test_values_follow_directions(decay, low, device):
    torch.manual_seed(0)
    values, wide = torch.randn(2, COUNT, device=device)
    directions = wide.to(low)
    copies = torch.full((COUNT,), torch.nan, dtype=LOW, device=device)
    expected = values.double() - 0.01 * 0.5 * (directions.double() + decay * values.double())
    norm, rate = torch.tensor(3.0, device=device), torch.tensor(0.01, device=device)
    follow_(values, copies, directions, norm, rate, scale=0.5, weight_decay=decay)
    torch.testing.assert_close(values.double(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(copies, values.to(LOW))


@pytest.mark.parametrize("norm", [torch.nan, torch.inf])
def test_what_is_not_finite_changes_nothing(norm, device):
    values, directions = torch.randn(2, COUNT, device=device)
    directions[7] = norm
    before, copies = values.clone(), values.to(LOW)
    for skips in (True, False):
        numbers = torch.tensor(norm, device=device), torch.tensor(0.01, device=device)
        follow_(values, copies, directions, *numbers, scale=1.0, weight_decay=0.0, skips=skips)
        assert torch.equal(values, before) == torch.equal(copies, before.to(LOW)) == skips
