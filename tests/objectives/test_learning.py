"""ELECTRA, masked LM and the ablations between them learn the little language, on text they have not seen."""

from dataclasses import replace

import pytest
import torch

from elektron.data.batches import Rows
from elektron.kernels.counters import seed_key
from elektron.model.initial import initialise
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig
from elektron.objectives.table import build
from elektron.train.evaluate import evaluate
from elektron.train.loop import held_batches
from elektron.train.optimizer import OptimizerConfig
from elektron.train.stages import begin_stage
from objectives.small import SHAPE

STEPS = 150
MARGINS = {
    "electra": {"generator_loss": -1.5, "discriminator_loss": -0.2, "detection_auc": 0.1},
    "electra-15": {"generator_loss": -1.5, "detection_auc": 0.07},
    "mlm": {"encoder_loss": -1.5, "encoder_accuracy": 0.15},
    "replace-mlm": {"generator_loss": -1.5, "encoder_loss": -1.5, "encoder_accuracy": 0.1},
    "all-tokens-mlm": {"generator_loss": -1.5, "encoder_loss": -0.6, "detection_auc": 0.1},
}
"""What each metric must change by, at the least."""


@pytest.mark.parametrize("kind", MARGINS)
def test_it_learns(kind, data):
    shape = replace(SHAPE, width=64, embedding_width=64, feedforward_width=128, positions=32, layers=1)
    config = ObjectiveConfig(kind=kind, generator_width=0.5, temperature=2.0 if kind != "mlm" else 1.0)
    model = build(shape, config, Lexicon(data.tokenizer.specials, data.index.vocab_size))
    initialise(model, 0, "local")
    rows = Rows(data.train, data.tokenizer.specials, 32, seed_key(0))
    held, device = held_batches(data, 32, 64, 16), torch.device("cpu")
    before = evaluate(model, held, device)
    model.train()
    stretch = begin_stage(model, STEPS, OptimizerConfig(), 0, 1, 0)
    for step in range(STEPS):
        stretch.update(rows.batch(step, 32), step, 3e-3 * min(1, (step + 1) / 20))
    after = evaluate(model, held, device)
    for name, margin in MARGINS[kind].items():
        change = after[name] - before[name]
        assert change / margin > 1, f"{name} went from {before[name]:.3f} to {after[name]:.3f}"
