from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from elektron.data.batches import Batch
from elektron.kernels.masking import masked_count
from elektron.objectives.choices import check
from elektron.objectives.objective import ObjectiveConfig
from elektron.train.optimizer import OptimizerConfig
from elektron.train.stages import begin_stage
from objectives.small import LENGTH, SPECIALS, VOCABULARY, batch, keys_of, make_model, measured, metrics_of
from reference import electra as reference
from reference import proposals

CONFIG = ObjectiveConfig(
    kind="two-stage", generator_width=1.0, sharing="none", generator_weight=2.0, discriminator_weight=7.0
)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("seed", range(2))
def test_a_pass_is_the_reference(stage, seed):
    """Losses and all gradients from the definitions; what does not learn has none at all."""
    model = make_model(CONFIG)
    model.stage = stage
    original, segments = batch(seed)
    outcome = model(original, segments, keys_of(seed))
    outcome.loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)

    positions, masked = proposals.gaps(original, CONFIG, SPECIALS, masked_count(LENGTH, CONFIG.mask_rate), seed)
    logits = model.generator(torch.tensor(masked), segments)
    places = [(row, place) for row, of_row in enumerate(positions) for place in of_row]
    losses = [reference.cross_entropy(logits[place].tolist(), int(original[place])) for place in places]
    metrics = metrics_of(model, outcome)
    assert metrics["generator_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    if stage == 0:
        expected = 2.0 * F.cross_entropy(
            torch.stack([logits[place] for place in places]), torch.stack([original[place] for place in places])
        )
        assert outcome.scores is None
        assert not outcome.tallies[-6:].any()
        assert not any(name.startswith("discriminator") for name in metrics)
    else:
        corrupted = torch.tensor(proposals.corrupted(original, positions, proposals.samples(logits, positions, seed)))
        scores, replaced = model.discriminator(corrupted, segments), corrupted != original
        expected = 7.0 * F.binary_cross_entropy_with_logits(scores, replaced.float())
        assert torch.allclose(outcome.scores, scores, atol=1e-5)
        assert torch.equal(outcome.replaced, replaced)
        assert metrics["discriminator_loss"] == pytest.approx(expected.item() / 7.0, rel=1e-5)
    expected.backward()
    assert outcome.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        ours, theirs = found[name], parameter.grad
        assert (ours is None) == name.startswith(("discriminator.", "generator.")[stage]), name
        if ours is not None:
            assert theirs is not None
            assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-6), name


def test_the_first_stage_asks_no_discriminator(monkeypatch):
    model = make_model(CONFIG)
    monkeypatch.setattr(model.discriminator.encoder, "forward", None)
    model(*batch(), keys_of())
    model.stage = 1
    with pytest.raises(TypeError):
        model(*batch(), keys_of())


def test_evaluation_learns_nothing_in_any_stage():
    model = make_model(CONFIG)
    for stage in (0, 1):
        model.stage = stage
        with torch.no_grad():
            assert not model(*batch(), keys_of()).loss.requires_grad
        assert model(*batch(), keys_of()).loss.requires_grad


def test_networks_share_nothing():
    model = make_model(CONFIG)
    of_generator, of_discriminator = ({id(p) for p in n.parameters()} for n in (model.generator, model.discriminator))
    assert not of_generator & of_discriminator
    assert list(model.networks()) == ["discriminator", "generator"]
    first, second = model.stages
    assert (first.share, first.learns, first.inherits) == (0.5, ("generator.",), ())
    assert (second.share, second.learns) == (0.5, ("discriminator.",))
    assert second.inherits == (("discriminator.encoder.", "generator.encoder."),)
    assert make_model(replace(CONFIG, inherits=False)).stages[1].inherits == ()


def test_each_stage_learns():
    """On a few rows, the generator soon knows the gaps; then the discriminator finds its samples."""
    total, model = 300, make_model(CONFIG, spread=0.0).train()
    rows = Batch(*batch(rows=8), torch.arange(8, dtype=torch.int32))
    found, step = [], 0
    for _ in model.stages:
        stretch = begin_stage(model, total, OptimizerConfig(), 0, 1, step)
        for last in (stretch.begin, stretch.end):
            while step < last:
                stretch.update(rows, step, 2e-3 * min(1, (step - stretch.begin + 1) / 20))
                step += 1
            found.append(measured(model, rows))
        stretch.optimizer.give_back(model)
    untaught, taught, blind, seeing = found
    assert step == total
    assert taught["generator_loss"] < untaught["generator_loss"] - 0.5
    assert blind["generator_loss"] == pytest.approx(taught["generator_loss"])
    assert seeing["generator_loss"] == blind["generator_loss"]
    assert seeing["auc"] > blind["auc"] + 0.15
    assert seeing["discriminator_loss"] < blind["discriminator_loss"] - 0.2


@pytest.mark.parametrize("change", [{"generator_width": 0.5}, {"generator_layers": 0.5}])
def test_networks_of_two_sizes_are_refused(change):
    with pytest.raises(ValueError, match="--objective.generator-width 1.0 --objective.generator-layers 1.0"):
        check(replace(CONFIG, **change))


def test_flops_a_token():
    """Half of a step of each network, and half of a question to the generator."""
    electra = make_model(replace(CONFIG, kind="electra"))
    projected, layer = 2 * 16 * 32, 2 * (4 * 32**2 + 2 * 32 * 64) + 4 * LENGTH * 32
    named = masked_count(LENGTH, 0.15) / LENGTH * 2 * 16 * (32 + VOCABULARY)
    asked = projected + 2 * layer + named
    assert make_model(CONFIG).flops_per_token(LENGTH) == pytest.approx((electra.flops_per_token(LENGTH) + asked) / 2)
