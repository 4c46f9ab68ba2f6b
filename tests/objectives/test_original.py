"""Google's own code where there is no TensorFlow: its losses are those that runs/original.py recorded."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from original import RECIPE, RECORDED, TASKS, made_up, our_lesson, ours

THEIRS = json.loads((Path(__file__).parent.parent / "reference" / "original.json").read_text())


def test_all_that_can_be_recorded_is():
    assert set(THEIRS) == set(RECORDED) | set(TASKS)


@pytest.mark.parametrize("name", RECORDED)
def test_updates_are_the_original_s(name):
    """Masks, samples, dropout, losses, gradients, clipping, Adam and the schedule, all at once."""
    config = RECORDED[name]
    found = list(ours(config, *made_up(config)))
    np.testing.assert_allclose(found, THEIRS[name], rtol=5e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": {"bias_correction": True}},
        {"optimizer": {"epsilon": 1e-5}},
        {"optimizer": {"weight_decay": 0.02}},
        {"optimizer": {"clip_norm": 0.0}},
        {"schedule": {"kind": "linear"}},
        {"objective": {"keep_rate": 0.2}},
        {"objective": {"draws": "without-replacement"}},
        {"objective": {"discriminator_weight": 49.0}},
        {"model": {"attention_dropout": 0.0}},
        {"model": {"dropout": 0.11}},
    ],
)
def test_every_setting_is_seen(change):
    """Another value of any of them is another run: the comparison above would notice."""
    config = RECORDED["electra"]
    for section, values in change.items():
        config = replace(config, **{section: replace(getattr(config, section), **values)})
    found = list(ours(config, *made_up(config)))
    assert np.abs(np.array(found) / np.array(THEIRS["electra"]) - 1).max() > 1e-4


@pytest.mark.parametrize("task", TASKS)
def test_tasks_are_learned_as_the_original_learns_them(task):
    """Heads, dropout, the sum of the losses, layer decay, weight decay, Adam and the schedule."""
    np.testing.assert_allclose(our_lesson(task), THEIRS[task], rtol=3e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"loss": "mean"},
        {"schedule": "linear"},
        {"bias_correction": True},
        {"decay_from_top": False},
        {"layer_decay": 0.82},
        {"weight_decay": 0.05},
        {"warmup": 0.15},
    ],
)
def test_every_setting_of_the_recipe_is_seen(change):
    found = our_lesson("cola", replace(RECIPE, **change))
    assert np.abs(np.array(found) / np.array(THEIRS["cola"]) - 1).max() > 1e-3
