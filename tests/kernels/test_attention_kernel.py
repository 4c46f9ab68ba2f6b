import pytest
import torch

from elektron.kernels import attention as subject
from elektron.kernels.attention import attention, attention_backward, attention_forward, plain_attention, sum_parts
from elektron.kernels.counters import kept, row_keys

CUDA = torch.cuda.is_available()
DTYPES = [torch.float16, torch.bfloat16] if CUDA else [torch.float32]
HALVES = [torch.float16, torch.bfloat16] if CUDA else [torch.float16]  # the interpreter cannot multiply bfloat16
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """What a kernel forgets to write is nan."""
    empty, empty_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *a, **k: _poisoned(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: _poisoned(empty_like(*a, **k)))


def _poisoned(tensor):
    return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor


def drawn(shape, dtype, device, masked, seed=0):
    """qkv, gradient of the result, mask, keys. The first row of a mask hides every key, where there are others. Masks
    may be "views", of each query its own, or "causal", the same for all rows."""
    rows, length, heads, width = shape
    noise = torch.Generator().manual_seed(seed)
    qkv = torch.randn(rows, length, 3 * heads * width, generator=noise).to(device, dtype)
    grad = torch.randn(rows, length, heads * width, generator=noise).to(device, dtype)
    mask = None
    if masked == "causal":
        mask = torch.ones(1, length, length, dtype=torch.bool, device=device).tril()
    elif masked == "views":
        mask = (torch.rand(rows, length, length, generator=noise) < 0.4).to(device)
        mask[0] = rows == 1
        mask[-1, -1, 0] = True
        mask[-1, : length // 2] = False  # some see nothing
    elif masked:
        mask = (torch.rand(rows, length, generator=noise) < 0.6).to(device)
        mask[0] = rows == 1
        mask[-1, 0] = True
    return qkv, grad, mask, row_keys(seed, 3, torch.arange(rows, dtype=torch.int32)).to(device)


def reference(qkv, grad, heads, mask, rate, keys):
    """(O, L, dqkv) in float64, by the definition and autograd."""
    rows, length, _ = qkv.shape
    qkv = qkv.double().cpu().requires_grad_()
    q, k, v = qkv.view(rows, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    seen = torch.ones(rows, length) if mask is None else mask.double().cpu()
    seen = (seen if seen.ndim == 3 else seen[:, None]).expand(rows, length, length)[:, None]  # [B, 1, T, T]
    dead = seen.sum(-1, keepdim=True) == 0
    probabilities = scores.masked_fill((seen == 0) & ~dead, -torch.inf).softmax(-1) * ~dead
    if rate:
        probabilities = probabilities * kept(scores.shape, rate, keys.cpu(), torch.float64) / (1 - rate)
    out = torch.einsum("bhij,bhjd->bihd", probabilities, v).reshape(rows, length, -1)
    out.backward(grad.double().cpu())
    lse = scores.masked_fill(seen == 0, -torch.inf).logsumexp(-1)
    assert qkv.grad is not None
    return out.detach(), lse.masked_fill(dead.squeeze(-1), torch.inf).detach(), qkv.grad


def assert_near(found, expected, tolerance):
    error = (found.double().cpu() - expected).abs().max().item()
    assert error <= tolerance * max(1.0, expected.abs().max().item()), f"off by {error}"  # nan is not <=


def check(shape, dtype, device, masked, rate):
    heads, tolerance = shape[2], TOLERANCE[dtype]
    qkv, grad, mask, keys = drawn(shape, dtype, device, masked)
    out, lse = attention_forward(qkv, heads, mask, rate, keys)
    sums = torch.full((sum_parts(*qkv.shape[:2]), qkv.shape[2]), torch.nan, device=device)
    dqkv = attention_backward(grad, qkv, out, lse, heads, mask, rate, keys, sums)
    assert out.dtype == dqkv.dtype == dtype
    expected_out, expected_lse, expected_dqkv = reference(qkv, grad, heads, mask, rate, keys)
    assert_near(out, expected_out, tolerance)
    seen = expected_lse.isfinite()
    assert torch.equal(lse.cpu().isfinite(), seen)
    assert (lse.cpu()[~seen] == torch.inf).all()
    assert_near(lse.cpu()[seen], expected_lse[seen], 1e-5)
    assert_near(dqkv, expected_dqkv, 2 * tolerance)
    assert_near(sums.sum(0), expected_dqkv.flatten(0, 1).sum(0), 4 * tolerance)
    if masked and masked != "causal" and shape[0] > 1:
        assert (out[0] == 0).all()
        assert (dqkv[0] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masked", [False, True, "views", "causal"])
@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("length", [1, 5, 63, 64, 100, 128])
def test_short_rows_are_the_reference(length, rate, masked, dtype, device):
    check((2, length, 2, 16), dtype, device, masked, rate)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "masked", "rate"),
    [
        ((1, 130, 2, 16), False, 0.1),
        ((2, 200, 1, 16), True, 0.3),
        ((2, 131, 1, 16), True, 0.0),
        ((1, 192, 1, 16), False, 0.1),
        ((1, 256, 1, 16), False, 0.0),
        ((2, 147, 1, 16), "views", 0.1),
        ((2, 256, 1, 16), "views", 0.0),
        ((2, 150, 2, 16), "causal", 0.2),
    ],
)
def test_long_rows_are_the_reference(shape, masked, rate, dtype, device):
    check(shape, dtype, device, masked, rate)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(1, 128, 3, 64), (2, 40, 1, 32), (1, 70, 1, 128), (1, 140, 1, 128), (1, 512, 1, 64)])
def test_widths_of_heads_and_long_rows(shape, dtype, device):
    check(shape, dtype, device, False, 0.1)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("masked", [False, True, "views", "causal"])
@pytest.mark.parametrize("shape", [(3, 1, 1, 16), (3, 9, 2, 8), (2, 33, 3, 5)])
def test_the_plain_twin_is_the_reference(shape, masked, rate, device):
    qkv, grad, mask, keys = drawn(shape, torch.float64, device, masked)
    expected_out, _, expected_dqkv = reference(qkv, grad, shape[2], mask, rate, keys)
    qkv.requires_grad_()
    out = plain_attention(qkv, shape[2], mask, rate, keys)
    out.backward(grad)
    assert_near(out.detach(), expected_out, 1e-12)
    assert_near(qkv.grad, expected_dqkv, 1e-12)


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("length", [20, 140])
def test_scores_may_be_large(length, views, device):
    """A hidden key that would overflow the exponential, and scores far below zero."""
    dtype = torch.float16
    qkv, grad, mask, keys = drawn((2, length, 1, 16), dtype, device, True)
    assert mask is not None
    qkv[:, :, :16] = 20
    qkv[:, :, 16:32] = torch.where(mask[..., None], qkv[:, :, 16:32] - 20, 30.0)
    mask = mask[:, None].repeat(1, length, 1) if views else mask
    out, lse = attention_forward(qkv, 1, mask, 0.1, keys)
    dqkv = attention_backward(grad, qkv, out, lse, 1, mask, 0.1, keys, torch.empty(64, qkv.shape[2], device=device))
    expected_out, _, expected_dqkv = reference(qkv, grad, 1, mask, 0.1, keys)
    assert_near(out, expected_out, 5e-3)
    assert_near(dqkv, expected_dqkv, 1e-2)


def test_what_a_row_gets_does_not_depend_on_the_others(device):
    qkv, grad, mask, keys = drawn((3, 24, 2, 16), torch.float16, device, True)
    assert mask is not None
    sums = torch.empty(3, qkv.shape[2], device=device)
    whole, lse = attention_forward(qkv, 2, mask, 0.2, keys)
    dwhole = attention_backward(grad, qkv, whole, lse, 2, mask, 0.2, keys, sums)
    part, lse = attention_forward(qkv[1:2], 2, mask[1:2], 0.2, keys[1:2])
    dpart = attention_backward(grad[1:2], qkv[1:2], part, lse, 2, mask[1:2], 0.2, keys[1:2], sums)
    assert torch.equal(part, whole[1:2])
    assert torch.equal(dpart, dwhole[1:2])


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_the_function_has_the_gradient(rate, device):
    """Of the autograd wrapper, with an incoming gradient that is not contiguous."""
    qkv, grad, mask, keys = drawn((2, 12, 2, 16), torch.float16, device, True)
    grad = grad.transpose(1, 2).contiguous().transpose(1, 2)
    expected_out, _, expected_dqkv = reference(qkv, grad, 2, mask, rate, keys)
    qkv.requires_grad_()
    out = subject._Attention.apply(qkv, 2, mask, rate, keys)
    out.backward(grad)
    assert_near(out.detach(), expected_out, 2e-3)
    assert_near(qkv.grad, expected_dqkv, 4e-3)


@pytest.mark.parametrize("width", [16, 24])
def test_kernel_or_twin_are_one_function(width, device):
    qkv, _, mask, keys = drawn((2, 31, 2, width), torch.float16, device, True)
    for noise in (None, keys):
        found, twin = attention(qkv, 2, mask, 0.1, noise), plain_attention(qkv, 2, mask, 0.1, noise)
        assert_near(found, twin.double().cpu(), 4e-3)
    assert torch.equal(attention(qkv, 2, mask, 0.1, None), attention(qkv, 2, mask, 0.0, keys))
