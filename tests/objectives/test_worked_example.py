"""The worked example of docs/objectives.md, word for word."""

import re
from pathlib import Path

import pytest
import torch

from elektron.model.initial import initialise
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Objective, ObjectiveConfig
from elektron.objectives.table import OBJECTIVES
from elektron.train.optimizer import OptimizerConfig
from elektron.train.stages import begin_stage
from objectives.small import LENGTH, ROWS, SHAPE, SPECIALS, VOCABULARY, batch, keys_of

PAGE = Path(__file__).parents[2] / "docs" / "objectives.md"


def example() -> type[Objective]:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found: dict[str, type[Objective]] = {}
    exec(compile(code, str(PAGE), "exec"), found)
    return found["Shuffled"]


def test_it_does_what_it_says():
    model = example()(SHAPE, ObjectiveConfig(mask_rate=0.4), Lexicon(SPECIALS, VOCABULARY))
    initialise(model, 0)
    outcome = model.eval()(*batch(), keys_of())
    assert 0 < outcome.replaced.sum() <= ROWS * round(0.4 * LENGTH)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(outcome.scores, outcome.replaced.float())
    assert outcome.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    model.train()
    stretch = begin_stage(model, 60, OptimizerConfig(), 0, 1, 0)
    losses = [
        stretch.update((*batch(), torch.arange(ROWS, dtype=torch.int32)), step, 3e-3)[1].item() for step in range(60)
    ]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_the_page_has_every_objective():
    page = PAGE.read_text(encoding="utf-8")
    for kind in OBJECTIVES:
        assert f"| `{kind}` |" in page, kind
