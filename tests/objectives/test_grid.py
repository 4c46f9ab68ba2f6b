"""Every choice with every objective that allows it: twenty updates of a micro model, with finite losses. The products
of all choices, which take long, are for `make test-all`."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from elektron.data.batches import Batch
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.objectives.choices import as_needed, check
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Kind, ObjectiveConfig
from elektron.objectives.table import OBJECTIVES, build
from elektron.train.optimizer import OptimizerConfig
from elektron.train.stages import begin_stage
from objectives.small import SPECIALS

SHAPE = EncoderConfig(
    layers=1,
    width=16,
    heads=2,
    feedforward_width=16,
    embedding_width=8,
    positions=16,
    dropout=0.1,
    attention_dropout=0.1,
)
WORDS, ROWS, LENGTH, STEPS = 24, 4, 16, 20
CHOICES = {
    "masking": ["whole-word", "span", "frequency"],
    "generator": ["two-tower", "uniform", "unigram", "tied", "frozen"],
    "sharing": ["token-embeddings", "none", "gdes"],
    "equal": ["replaced"],
    "sentence_weight": [1.0],
    "disallow_correct": [True],
    "temperature": [0.0, 2.0],
    "first_temperature": [4.0],
    "keep_rate": [0.15],
    "draws": ["with-replacement"],
}
BESIDE = {"frozen": {"sharing": "none"}}
"""What a choice does not go without."""


def allowed(kind: Kind, **chosen: object) -> ObjectiveConfig | None:
    """The config with these choices, if they go together."""
    for value in list(chosen.values()):
        chosen |= {name: wanted for name, wanted in BESIDE.get(str(value), {}).items() if name not in chosen}
    try:
        return check(replace(as_needed(ObjectiveConfig(mask_rate=0.25, generator_width=0.5), kind), **chosen))
    except ValueError:
        return None


def singles() -> dict[str, ObjectiveConfig]:
    found = {}
    for kind in OBJECTIVES:
        chosen = [{}, *({name: value} for name, values in CHOICES.items() for value in values)]
        for choice in chosen:
            config = allowed(kind, **choice)
            if config is not None:
                found["-".join([kind, *map(str, choice.values())])] = config
    return found


def products() -> dict[str, ObjectiveConfig]:
    default = ObjectiveConfig()
    ways = [[getattr(default, name), *values] for name, values in CHOICES.items()]
    found = {}
    for kind in OBJECTIVES:
        for values in itertools.product(*ways):
            changed = {n: v for n, v in zip(CHOICES, values, strict=True) if v != getattr(default, n)}
            config = allowed(kind, **changed)
            if config is not None:
                found[config] = "-".join([kind, *map(str, changed.values())])
    return {name: config for config, name in found.items()}


def updated(config: ObjectiveConfig, steps: int) -> list[float]:
    """The losses of so many updates."""
    draw = np.random.default_rng(0)
    lexicon = Lexicon(SPECIALS, WORDS, torch.from_numpy(draw.random(WORDS) < 0.4), draw.integers(0, 99, WORDS))
    model = build(SHAPE, config, lexicon)
    initialise(model, 0)
    model.train()
    tokens = torch.from_numpy(draw.integers(5, WORDS, (ROWS, LENGTH)))
    tokens[:, 0], tokens[:, 7], tokens[:, -1] = SPECIALS.cls, SPECIALS.sep, SPECIALS.sep
    batch = Batch(tokens, (torch.arange(LENGTH) > 7).long().repeat(ROWS, 1), torch.arange(ROWS, dtype=torch.int32))
    losses: list[float] = []
    stretch = begin_stage(model, steps, OptimizerConfig(), 0, 2, 0)
    for step in range(steps):
        if step == stretch.end:
            stretch.optimizer.give_back(model)
            stretch = begin_stage(model, steps, OptimizerConfig(), 0, 2, step)
        tallies = stretch.update(batch, step, 1e-3).tolist()
        found = model.summary(dict(zip(model.tallies, tallies[:-2], strict=True)))
        losses += [value for name, value in found.items() if name.endswith("loss")] + tallies[-2:]
    model.eval()
    assert all(math.isfinite(loss) for loss in losses)
    assert model.flops_per_token(LENGTH) > 0
    assert all(math.isfinite(value) for value in losses)
    (first, *_) = model.networks().values()
    assert torch.isfinite(first(tokens, batch.segments)).all()
    return losses


SINGLES = singles()


@pytest.mark.parametrize("name", SINGLES)
def test_a_choice_with_an_objective(name):
    assert updated(SINGLES[name], STEPS)


def test_every_objective_and_every_choice_is_there():
    kinds = {config.kind for config in SINGLES.values()}
    assert kinds == set(OBJECTIVES)
    for name, values in CHOICES.items():
        for value in values:
            assert any(getattr(config, name) == value for config in SINGLES.values()), (name, value)


@pytest.mark.grid
def test_all_choices_together():
    failed = []
    for name, config in products().items():
        try:
            updated(config, 2)
        except Exception as error:
            failed.append(f"{name}: {error!r}")
    assert not failed, "\n".join(failed[:20])
