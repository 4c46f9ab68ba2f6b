from contextlib import nullcontext
from dataclasses import replace
from typing import Literal

import pytest
import torch

from elektron.data.batches import Batch
from elektron.data.tokenizer import Specials
from elektron.kernels import layers
from elektron.kernels.layer import LayerWeights
from elektron.kernels.parameters import Factors, add_matrices
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.objectives import proposing
from elektron.objectives.electra import Electra
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig
from elektron.train.device import precision
from elektron.train.optimizer import Optimizer, OptimizerConfig
from elektron.train.step import Updates, update

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
SHAPE = EncoderConfig(layers=2, width=64, heads=2, feedforward_width=128, embedding_width=32, positions=32)


def make(
    device: str, shape: EncoderConfig = SHAPE, kind: Literal["adamw", "muon"] = "adamw"
) -> tuple[Electra, Optimizer]:
    model = Electra(shape, ObjectiveConfig(generator_width=0.5), Lexicon(Specials(0, 1, 2, 3, 4), 100))
    initialise(model, 0)
    model.to(device).train()
    return model, Optimizer(model, OptimizerConfig(kind=kind), precision(torch.device(device)))


def make_batch(rows: int, length: int) -> Batch:
    original = torch.randint(5, 100, (rows, length))
    original[:, 0], original[:, -1] = 2, 3
    return Batch(original, torch.zeros_like(original), torch.arange(rows, dtype=torch.int32))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_replayed_updates_are_updates(device, kind, accumulate):
    """Bit for bit: also when shapes alternate, and with rates that change."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    batches = [make_batch(8, 16), make_batch(8, 16), make_batch(4, 32), make_batch(8, 16)]
    found = []
    for replayed in (True, False):
        model, optimizer = make(device, kind=kind)
        updates = Updates(model, optimizer, 7, accumulate, torch.device(device))
        tallies = []
        for step, batch in enumerate(batches):
            rate = 1e-3 * (step + 1)
            if replayed:
                sums = updates(batch, step, rate)
            else:
                moved = Batch(*(tensor.to(device) for tensor in batch))
                counter = torch.tensor(step, dtype=torch.int32, device=device)
                given = rate if device == "cpu" else torch.tensor(rate, device=device)
                sums = update(model, optimizer, 7, accumulate, moved, counter, given)
            tallies.append(sums.tolist())
        found.append((tallies, optimizer.values.clone()))
    (tallies, values), (expected, expected_values) = found
    assert tallies == expected
    assert torch.equal(values, expected_values)


@needs_gpu
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(("width", "embedding_width"), [(64, 32), (256, 32), (64, 272), (64, 100)])
def test_streams_change_nothing(width, embedding_width, accumulate, monkeypatch):
    """Bit for bit: with a generator that is narrow and one that is not, with features of all widths."""
    shape = replace(SHAPE, width=width, feedforward_width=2 * width, embedding_width=embedding_width)
    found = []
    for streams in (True, False):
        if not streams:
            monkeypatch.setattr(proposing, "beside", lambda *given: nullcontext())
            monkeypatch.setattr(layers, "Aside", InLine)
        torch.manual_seed(0)
        model, optimizer = make("cuda", shape)
        updates = Updates(model, optimizer, 7, accumulate, torch.device("cuda"))
        for step in range(4):
            updates(make_batch(64, 32), step, 1e-3)
        found.append(optimizer.values.clone())
    assert torch.equal(*found)


class InLine:
    """`Aside` without a stream."""

    def __init__(self, device: torch.device) -> None:
        pass

    def add_matrices(self, factors: Factors, weights: LayerWeights) -> None:
        add_matrices(factors, weights)

    def join(self) -> None:
        pass
