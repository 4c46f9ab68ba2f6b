"""AdamW's kernel against its equations in float64."""

import pytest
import torch

from elektron.kernels.adam import ALIGNMENT, adamw_

COUNT, DECAYED = 5000, 1300
BETAS = 0.9, 0.999
DTYPES = [torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]  # the interpreter cuts bfloat16 off


@pytest.mark.parametrize("clip", [0.0, 0.7, 1e9])
@pytest.mark.parametrize("updates", [1, 2, 1000, 10**9])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scaled", [False, True])
def test_the_kernel_is_the_equations(clip, updates, dtype, scaled, device):
    torch.manual_seed(updates)
    values, gradients, first = torch.randn(3, COUNT, device=device)
    second = torch.rand(COUNT, device=device)
    copies = torch.full((COUNT,), torch.nan, dtype=dtype, device=device)
    before = [tensor.double().cpu() for tensor in (values, gradients, first, second)]
    norm, rate = gradients.norm(), torch.tensor(0.01, device=device)
    counter = torch.full((2,), float(updates), device=device)
    scales = torch.rand(-(-COUNT // ALIGNMENT)) if scaled else None
    adamw_(
        *(values, copies, gradients, first, second, DECAYED, counter, norm, rate),
        scales if scales is None else scales.to(device),
        beta1=BETAS[0],
        beta2=BETAS[1],
        epsilon=1e-6,
        weight_decay=0.1,
        clip_norm=clip,
    )
    value, g, m, v = before
    if clip:
        g = g * min(1.0, clip / float(before[1].norm()))
    m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
    decay = 0.1 * (torch.arange(COUNT) < DECAYED)
    change = m / (1 - BETAS[0] ** updates) / ((v / (1 - BETAS[1] ** updates)).sqrt() + 1e-6) + decay * value
    if scales is not None:
        change = change * scales.double().repeat_interleave(ALIGNMENT)[:COUNT]
    value = value - 0.01 * change
    for found, expected in ((values, value), (first, m), (second, v)):
        torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(copies, values.to(dtype))


@pytest.mark.parametrize("norm", [torch.nan, torch.inf])
def test_what_is_not_finite_changes_nothing(norm, device):
    values, gradients, first, second = torch.randn(4, COUNT, device=device).abs()
    gradients[7] = norm
    copies, before = values.half(), [tensor.clone() for tensor in (values, first, second)]
    for skips in (True, False):
        adamw_(
            *(values, copies, gradients, first, second, DECAYED, torch.ones(1, device=device)),
            *(torch.tensor(norm, device=device), torch.tensor(0.01, device=device)),
            beta1=BETAS[0],
            beta2=BETAS[1],
            epsilon=1e-6,
            weight_decay=0.1,
            clip_norm=1.0,
            skips=skips,
        )
        is_same = [torch.equal(tensor, old) for tensor, old in zip((values, first, second), before, strict=True)]
        assert is_same == [skips] * 3
