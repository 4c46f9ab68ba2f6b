"""Both networks and the objective by kernels, against plain PyTorch in float64."""

import pytest
import torch

from elektron.data.tokenizer import Specials
from elektron.kernels import attention, counters, embedding, judging, layers, masking, products, vocabulary
from elektron.kernels.counters import row_keys
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.model.weights import lower
from elektron.objectives.electra import Electra
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig

ROWS, LENGTH, WORDS = 6, 40, 100


def make(embedding_width: int) -> Electra:
    """With vectors that are not all zeros and ones, and rates of dropout that differ."""
    shape = EncoderConfig(
        layers=2,
        width=64,
        heads=2,
        feedforward_width=128,
        embedding_width=embedding_width,
        positions=64,
        dropout=0.1,
        attention_dropout=0.2,
    )
    model = Electra(shape, ObjectiveConfig(generator_width=0.5), Lexicon(Specials(0, 1, 2, 3, 4), WORDS))
    initialise(model, 0)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=noise)
    return model.train()


@pytest.mark.parametrize("embedding_width", [32, 64])  # with a projection, and without
def test_the_model_by_kernels_is_the_plain_model(embedding_width, device, monkeypatch):
    torch.manual_seed(0)
    original = torch.randint(5, WORDS, (ROWS, LENGTH))
    original[:, 0], original[:, -1] = 2, 3
    segments = (torch.arange(LENGTH) > 20).long().expand(ROWS, LENGTH).contiguous()
    keys = row_keys(3, 1, torch.arange(ROWS, dtype=torch.int32))
    exact = make(embedding_width).double()
    expected = exact(original, segments, keys)
    expected.loss.backward()

    for module in (attention, counters, embedding, judging, layers, masking, products, vocabulary):
        monkeypatch.setattr(module, "runs_on", lambda tensor: True)
    fast = make(embedding_width).to(device)
    lower(fast, torch.float16)
    found = fast(*(tensor.to(device) for tensor in (original, segments, keys)))
    found.loss.backward()
    torch.cuda.synchronize() if device.type == "cuda" else None

    assert found.loss.item() == pytest.approx(expected.loss.item(), rel=1e-3)
    assert torch.equal(found.replaced.cpu(), expected.replaced)
    torch.testing.assert_close(found.tallies.cpu(), expected.tallies, rtol=1e-3, atol=2.0)
    gradients = {name: parameter.grad for name, parameter in exact.named_parameters()}
    for name, parameter in fast.named_parameters():
        gradient = gradients[name]
        assert gradient is not None
        assert parameter.grad is not None, name
        assert (parameter.grad.double().cpu() - gradient).norm() < 1e-2 * gradient.norm(), name
