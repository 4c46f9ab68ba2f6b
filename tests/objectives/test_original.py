"""Google's own code where there is no TensorFlow: its losses are those that runs/original.py recorded."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from original import RECORDED, made_up, ours

THEIRS = json.loads((Path(__file__).parent.parent / "reference" / "original.json").read_text())


def test_all_that_can_be_recorded_is():
    assert set(THEIRS) == set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_updates_are_the_original_s(name):
    """Masks, samples, dropout, losses, gradients, clipping, Adam and the schedule, all at once."""
    config = RECORDED[name]
    found = list(ours(config, *made_up(config)))
    np.testing.assert_allclose(found, THEIRS[name], rtol=2e-5)


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
