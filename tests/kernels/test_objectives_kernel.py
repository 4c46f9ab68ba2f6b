"""Every objective by kernels, against plain PyTorch in float64."""

import pytest
import torch

from elektron.data.tokenizer import Specials
from elektron.kernels import attention, counters, embedding, judging, layers, masking, products, vocabulary
from elektron.kernels.counters import elements, fold, gumbel, row_keys
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.model.weights import lower
from elektron.objectives.choices import as_needed
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Kind, Objective, ObjectiveConfig
from elektron.objectives.table import OBJECTIVES, build

ROWS, LENGTH, WORDS = 3, 24, 100
CLEAR = 0.01
SHAPE = EncoderConfig(
    layers=1,
    width=64,
    heads=2,
    feedforward_width=128,
    embedding_width=32,
    positions=64,
    dropout=0.1,
    attention_dropout=0.2,
)
CASES: list[tuple[Kind, int]] = [*((kind, 0) for kind in OBJECTIVES if kind != "electra"), ("two-stage", 1)]
"""test_model_kernel.py has ELECTRA itself."""


def make(kind: Kind, stage: int) -> Objective:
    """With vectors that are not all zeros and ones."""
    config = as_needed(ObjectiveConfig(generator_width=0.5), kind)
    model = build(SHAPE, config, Lexicon(Specials(0, 1, 2, 3, 4), WORDS))
    initialise(model, 0)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=noise)
    model.stage = stage
    return model.train()


def clear_keys(
    model: Objective, original: torch.Tensor, segments: torch.Tensor, progress: torch.Tensor
) -> torch.Tensor:
    """Keys whose draws are won by so much that 16 bits do not change them."""
    margins: list[float] = []

    def sample(logits: torch.Tensor, temperature: float, forbidden: torch.Tensor | None, keys: torch.Tensor) -> object:
        assert logits.shape[1] <= vocabulary.BLOCK, "one block"
        noise = gumbel(elements(fold(keys, 1), vocabulary.BLOCK))[:, : logits.shape[1]]
        best, second = (logits / temperature + noise).topk(2).values.unbind(1)
        margins.append((best - second).min().item())
        return real(logits, temperature, forbidden, keys)

    real, vocabulary.sample = vocabulary.sample, sample
    try:
        for seed in range(100):
            margins.clear()
            keys = row_keys(seed, 1, torch.arange(ROWS, dtype=torch.int32))
            with torch.no_grad():
                model(original, segments, keys, progress)
            if min(margins, default=1.0) > CLEAR:
                return keys
    finally:
        vocabulary.sample = real
    raise AssertionError(f"no keys whose draws are all won by {CLEAR}")


@pytest.mark.parametrize(("kind", "stage"), CASES)
def test_the_objective_by_kernels_is_the_plain_one(kind, stage, device, monkeypatch):
    torch.manual_seed(0)
    original = torch.randint(5, WORDS, (ROWS, LENGTH))
    original[:, 0], original[:, -1] = 2, 3
    segments = (torch.arange(LENGTH) > 12).long().expand(ROWS, LENGTH).contiguous()
    exact, progress = make(kind, stage).double(), torch.tensor(0.5)
    keys = clear_keys(exact, original, segments, progress)
    expected = exact(original, segments, keys, progress)
    expected.loss.backward()

    for module in (attention, counters, embedding, judging, layers, masking, products, vocabulary):
        monkeypatch.setattr(module, "runs_on", lambda tensor: True)
    fast = make(kind, stage).to(device)
    lower(fast, torch.float16)
    found = fast(*(tensor.to(device) for tensor in (original, segments, keys, progress)))
    found.loss.backward()
    torch.cuda.synchronize() if device.type == "cuda" else None

    assert found.loss.item() == pytest.approx(expected.loss.item(), rel=1e-3)
    assert (found.replaced is None) == (expected.replaced is None)
    if found.replaced is not None and expected.replaced is not None:
        assert torch.equal(found.replaced.cpu(), expected.replaced)
    torch.testing.assert_close(found.tallies.cpu(), expected.tallies, rtol=1e-3, atol=2.0)
    gradients = {name: parameter.grad for name, parameter in exact.named_parameters()}
    for name, parameter in fast.named_parameters():
        gradient, ours = gradients[name], parameter.grad
        assert (gradient is None) == (ours is None), name
        if gradient is not None and ours is not None:
            assert (ours.double().cpu() - gradient).norm() < 1e-2 * gradient.norm(), name
