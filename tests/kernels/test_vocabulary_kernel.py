import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from elektron.kernels import vocabulary
from elektron.kernels.counters import row_keys
from elektron.kernels.vocabulary import Spoken, _run, _Speak, sample

TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * torch.cuda.is_available()

# rows, width, vocabulary: one row, edges of the tiles, widths that are no power of two, features kept whole and sliced
SHAPES = [
    (1, 16, 1),
    (1, 16, 130),
    (3, 32, 5),
    (128, 128, 256),
    (131, 48, 385),
    (60, 256, 300),
    (130, 272, 129),
]


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """What a kernel does not write is not a number."""

    def poisoned(make):
        def made(*args, **kwargs):
            new = make(*args, **kwargs)
            return new.fill_(torch.nan) if new.is_floating_point() else new.fill_(1)

        return made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))


class Case:
    """Inputs of a shape, with targets at both ends of the vocabulary."""

    def __init__(self, shape, dtype, device, seed=0, spread=2.0):
        count, width, size = shape
        noise = torch.Generator().manual_seed(seed)
        self.features = torch.randn(count, width, generator=noise).to(device, dtype).requires_grad_()
        table = torch.randn(size, width, generator=noise) * spread / width**0.5
        self.table = torch.nn.Parameter(table.to(device, dtype))
        self.bias = torch.nn.Parameter(torch.randn(size, generator=noise).to(device))
        self.targets = torch.randint(size, (count,), generator=noise)
        self.targets[-1], self.targets[0] = size - 1, 0
        self.targets = self.targets.to(device)
        self.keys = row_keys(seed, 0, torch.arange(count, dtype=torch.int32)).to(device)
        self.slopes = torch.randn(count, generator=noise).to(device)

    def spoken(self, temperature: float | torch.Tensor = 1.0, allowed=True):
        return Spoken(
            *_Speak.apply(self.features, self.table, self.bias, self.targets, temperature, allowed, self.keys)
        )

    def exact(self):
        """Logits, losses and gradients of (features, table, bias) in float64."""
        inputs = [x.detach().double().requires_grad_() for x in (self.features, self.table, self.bias)]
        logits = F.linear(*inputs)
        losses = F.cross_entropy(logits, self.targets, reduction="none")
        gradients = torch.autograd.grad(losses, inputs, self.slopes.double())
        return logits.detach(), losses.detach(), gradients


def assert_close(found, expected, tolerance):
    """Largest error against largest value."""
    assert found.isfinite().all()
    error = (found.double() - expected).abs().max() / expected.abs().max().clamp_min(0.1)
    assert error < tolerance, f"{error:.2e}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_losses_and_gradients_are_float64_s(shape, dtype, device):
    case = Case(shape, dtype, device, seed=sum(shape))
    logits, losses, gradients = case.exact()
    said = case.spoken()
    assert said.losses.dtype == torch.float32
    assert_close(said.losses, losses, 1e-5)  # sums are float32 whatever the inputs
    mine = logits.gather(1, case.targets[:, None]).squeeze(1)
    lead = mine - logits.scatter(1, case.targets[:, None], -torch.inf).amax(1)
    clear = lead.abs() > 1e-3 * logits.abs().amax(1).clamp_min(1.0)  # else the order of a sum decides
    assert torch.equal(said.hits[clear], (mine == logits.amax(1))[clear])
    said.losses.backward(case.slopes)
    found = [x.grad for x in (case.features, case.table, case.bias)]
    assert found[0] is not None
    assert found[0].dtype == dtype
    assert found[1] is not None
    assert found[1].dtype == torch.float32
    for gradient, expected in zip(found, gradients, strict=True):
        assert_close(gradient, expected, TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize(
    ("temperature", "allowed"), [(1.0, True), (1.0, False), (1.7, True), (0.6, False), (0.0, True), (0.0, False)]
)
@pytest.mark.parametrize("shape", [(1, 16, 1), (130, 80, 257), (30, 272, 129)])
def test_samples_are_the_plain_ones(shape, temperature, allowed, dtype, device):
    case = Case(shape, dtype, device, seed=5)
    logits, losses, _ = case.exact()
    said = case.spoken(temperature, allowed)
    expected = sample(logits.float(), temperature, None if allowed else case.targets, case.keys)
    assert said.sampled.dtype == torch.int64
    assert (said.sampled != expected).sum() <= shape[0] // 60  # two words may be as good as each other
    assert_close(said.losses, losses, 1e-5)
    if not allowed and shape[2] > 1:
        assert not (said.sampled == case.targets).any()


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_a_temperature_may_lie_on_the_device(temperature, device):
    case = Case((131, 48, 385), torch.float16, device)
    said = case.spoken(temperature)
    given = case.spoken(torch.tensor(temperature, device=device))
    assert torch.equal(said.losses, given.losses)
    assert (said.sampled == given.sampled).float().mean() > 0.98, "its inverse may differ in the last bit"


@pytest.mark.parametrize(("temperature", "forbidden"), [(1.0, 3), (0.7, None), (2.0, 290)])
def test_samples_follow_the_softmax(temperature, forbidden, device):
    count, size = 1000, 300
    case = Case((count, 16, size), torch.float32, device)
    case.features = case.features.detach()[:1].expand(count, 16)
    case.targets = torch.full((count,), 3 if forbidden is None else forbidden, device=device)
    drawn = case.spoken(temperature, forbidden is None).sampled
    z = F.linear(case.features[0].double(), case.table.double(), case.bias.double()).detach() / temperature
    if forbidden is not None:
        z[forbidden] = -torch.inf
    expected = z.softmax(0).cpu().numpy() * count
    found = np.bincount(drawn.cpu().numpy(), minlength=size)
    assert found[expected == 0].sum() == 0
    rare = expected < 10
    found, expected = (np.append(x[~rare], x[rare].sum()) for x in (found, expected))
    assert stats.chisquare(found, expected).pvalue > 1e-4


def test_a_forbidden_word_may_outweigh_all_others(device):
    """By more than float32's exponentials can tell, and once alone in its block."""
    case = Case((60, 16, 257), torch.float32, device)
    case.targets[:] = torch.tensor([5, 256], device=device).repeat(30)
    with torch.no_grad():
        case.bias[[5, 256]] = torch.tensor([300.0, -300.0], device=device)
    said = case.spoken(allowed=False)
    logits, losses, _ = case.exact()
    assert torch.equal(said.sampled, sample(logits.float(), 1.0, case.targets, case.keys))
    assert said.hits.tolist() == [True, False] * 30
    assert_close(said.losses, losses, 1e-5)


@pytest.mark.parametrize("shape", [(5, 48, 20), (5, 272, 20)])
def test_gradients_of_parameters_add_up(shape, device):
    case = Case(shape, torch.float32, device)
    case.spoken().losses.backward(case.slopes)
    once = [x.grad.clone() for x in (case.features, case.table, case.bias) if x.grad is not None]
    case.spoken().losses.backward(case.slopes)
    for x, first in zip((case.features, case.table, case.bias), once, strict=True):
        assert_close(x.grad, 2 * first.double(), 1e-6)


def test_repeats_bit_for_bit(device):
    found = []
    for _ in range(2):
        case = Case((30, 48, 257), torch.float16, device)
        said = case.spoken(0.9, False)
        said.losses.sum().backward()  # a slope that is one number, expanded
        found.append([*said, case.features.grad, case.table.grad, case.bias.grad])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_frozen_parameters_get_no_gradient(device):
    case = Case((5, 16, 20), torch.float32, device)
    case.table.requires_grad_(False)
    case.bias.requires_grad_(False)
    case.spoken().losses.sum().backward()
    assert case.table.grad is None
    assert case.features.grad is not None


@pytest.mark.parametrize("shape", [(30, 48, 257), (30, 272, 257)])
def test_any_cut_of_the_vocabulary_serves(shape, device, monkeypatch):
    """One program for each tile, and the slopes of one block at a time."""
    monkeypatch.setattr(vocabulary, "_run", lambda rows, tiles, slots: 1)
    monkeypatch.setattr(vocabulary, "_SLOPES", 1)
    case = Case(shape, torch.float32, device)
    _, losses, gradients = case.exact()
    said = case.spoken()
    said.losses.backward(case.slopes)
    assert_close(said.losses, losses, 1e-5)
    for x, expected in zip((case.features, case.table, case.bias), gradients, strict=True):
        assert_close(x.grad, expected, 1e-5)


@pytest.mark.parametrize("rows", [1, 19, 313])
@pytest.mark.parametrize("tiles", [1, 239, 2000])
def test_runs_fill_the_processors(rows, tiles):
    run = _run(rows, tiles, 132)
    assert 1 <= run <= tiles
    waves = -(-rows * -(-tiles // run) // 132)
    assert waves * run <= 1.25 * -(-rows * tiles // 132) or waves == 1
