"""Every objective learns the little language on the tiny preset, by what it says of text that it has not seen."""

import pytest
import torch

from elektron.data.batches import Rows
from elektron.data.shards import Data
from elektron.kernels.counters import seed_key
from elektron.model.initial import initialise
from elektron.objectives.choices import as_needed
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Kind
from elektron.objectives.table import OBJECTIVES, build
from elektron.train.evaluate import evaluate
from elektron.train.loop import held_batches
from elektron.train.schedule import ScheduleConfig, learning_rate
from elektron.train.stages import begin_stage
from elektron.verbs.runs import RunConfig, with_presets

TINY = with_presets(RunConfig(), ("tiny",))
STEPS, ROWS, LENGTH = 300, 32, 32
SCHEDULE = ScheduleConfig(learning_rate=2e-3, warmup_steps=20)
_DETECTION = {"generator_loss": -2.0, "discriminator_loss": -0.4, "detection_auc": 0.25}
_NAMING = {"generator_loss": -2.0, "encoder_loss": -2.0, "encoder_accuracy": 0.3}
MARGINS: dict[Kind, dict[str, float]] = {
    "electra": _DETECTION,
    "electra-15": {"generator_loss": -2.0, "detection_auc": 0.2},
    "mlm": {"encoder_loss": -2.0, "encoder_accuracy": 0.3},
    "replace-mlm": _NAMING,
    "all-tokens-mlm": {"generator_loss": -2.0, "encoder_loss": -0.8, "detection_auc": 0.2},
    "electric": {"generator_loss": -2.0, "discriminator_loss": -0.4},
    "two-stage": {"generator_loss": -2.0, "discriminator_loss": -0.3, "detection_auc": 0.2},
    "adversarial": {"generator_loss": -1.0, "discriminator_loss": -0.4, "detection_auc": 0.25},
    "gumbel": _DETECTION,
    "span": _DETECTION,
    "corrective": _DETECTION | {"encoder_loss": -2.0, "contrast_loss": -0.2},
}
"""What each metric must change by, at the least, from where it was when its stage began; AUC from chance."""


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_it_learns(kind: Kind, data: Data):
    model = build(TINY.model, as_needed(TINY.objective, kind), Lexicon(data.tokenizer.specials, data.index.vocab_size))
    initialise(model, 0, TINY.start)
    rows = Rows(data.train, data.tokenizer.specials, LENGTH, seed_key(0))
    held, device = held_batches(data, LENGTH, 64, 16), torch.device("cpu")
    before: dict[str, float] = {}
    step = 0
    for _ in model.stages:
        stretch = begin_stage(model, STEPS, TINY.optimizer, 0, 1, step)
        before = evaluate(model, held, device) | before
        model.train()
        while step < stretch.end:
            rate = learning_rate(SCHEDULE, step - stretch.begin, stretch.end - stretch.begin)
            stretch.update(rows.batch(step, ROWS), step, rate)
            step += 1
        stretch.optimizer.give_back(model)
    after = evaluate(model, held, device)
    before["detection_auc"] = 0.5
    for name, margin in MARGINS[kind].items():
        change = after[name] - before[name]
        assert change / margin > 1, f"{name} went from {before[name]:.3f} to {after[name]:.3f}"
