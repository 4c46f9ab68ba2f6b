import pytest
import torch

from elektron.objectives.lexicon import lexicon_of
from elektron.objectives.objective import ObjectiveConfig
from elektron.tasks.metrics import area_under_curve
from elektron.train.evaluate import evaluate, passes
from elektron.train.loop import held_batches
from objectives.small import make_model

CPU = torch.device("cpu")


def test_passes_are_what_evaluation_is_made_of(data):
    """Rows, noise and outcomes do not depend on how many rows go together, and add up to its metrics."""
    model = make_model(ObjectiveConfig(mask_rate=0.3), lexicon=lexicon_of(data.tokenizer)).train()
    (whole,), parts = (list(passes(model, held_batches(data, 20, 10, size), CPU)) for size in (10, 3))
    assert model.training
    assert len(parts) == 4
    for name in ("original", "segments", "keys"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts]))
    for name in ("corrupted", "positions", "replaced"):
        assert torch.equal(getattr(whole.outcome, name), torch.cat([getattr(part.outcome, name) for part in parts]))
    scores, replaced = whole.outcome.scores, whole.outcome.replaced
    assert scores is not None
    assert replaced is not None
    assert not scores.requires_grad
    found = evaluate(model, held_batches(data, 20, 10, 3), CPU)
    assert found["replaced_rate"] == pytest.approx(float(replaced.float().mean()))
    auc = area_under_curve(scores.flatten(), replaced.flatten())
    assert found["detection_auc"] == pytest.approx(auc, abs=1e-9)
