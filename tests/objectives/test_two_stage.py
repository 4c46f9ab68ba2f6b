from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from elektron.data.batches import Batch
from elektron.data.tokenizer import Specials
from elektron.kernels.counters import row_keys
from elektron.kernels.masking import masked_count
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.objectives.choices import check
from elektron.objectives.electra import Electra
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig
from elektron.objectives.two_stage import TwoStage
from elektron.train.evaluate import area_under_curve
from elektron.train.optimizer import OptimizerConfig
from elektron.train.stages import begin_stage
from reference import electra as reference
from reference import proposals

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
SHAPE = EncoderConfig(
    layers=2,
    width=32,
    heads=4,
    feedforward_width=64,
    embedding_width=16,
    positions=24,
    dropout=0.0,
    attention_dropout=0.0,
)
VOCABULARY = 40
ROWS, LENGTH = 4, 20
CONFIG = ObjectiveConfig(kind="two-stage", generator_width=1.0, generator_weight=2.0, discriminator_weight=7.0)


def make_model(config: ObjectiveConfig = CONFIG, shape: EncoderConfig = SHAPE, spread: float = 0.2) -> TwoStage:
    model = TwoStage(shape, config, Lexicon(SPECIALS, VOCABULARY))
    initialise(model, 0)
    with torch.no_grad():  # away from the beginning, where all logits are nearly zero
        for number, parameter in enumerate(model.parameters()):
            parameter += spread * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return model


def batch(seed: int = 0, rows: int = ROWS):
    original = torch.randint(5, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))
    original[:, 0], original[:, 9], original[:, -1] = SPECIALS.cls, SPECIALS.sep, SPECIALS.sep
    segments = (torch.arange(LENGTH) > 9).long().repeat(rows, 1)
    return original, segments


def keys(seed: int = 0, rows: int = ROWS) -> torch.Tensor:
    return row_keys(seed, proposals.CALL, torch.arange(rows, dtype=torch.int32))


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("seed", range(2))
def test_a_pass_is_the_reference(stage, seed):
    """Losses and all gradients from the definitions; what does not learn has none at all."""
    model = make_model()
    model.stage = stage
    original, segments = batch(seed)
    outcome = model(original, segments, keys(seed))
    outcome.loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)

    positions, masked = proposals.gaps(original, CONFIG, SPECIALS, masked_count(LENGTH, CONFIG.mask_rate), seed)
    logits = model.generator(torch.tensor(masked), segments)
    places = [(row, place) for row, of_row in enumerate(positions) for place in of_row]
    losses = [reference.cross_entropy(logits[place].tolist(), int(original[place])) for place in places]
    metrics = model.summary(dict(zip(model.tallies, outcome.tallies.tolist(), strict=True)))
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
    model = make_model()
    monkeypatch.setattr(model.discriminator.encoder, "forward", None)
    model(*batch(), keys())
    model.stage = 1
    with pytest.raises(TypeError):
        model(*batch(), keys())


def test_evaluation_learns_nothing_in_any_stage():
    model = make_model()
    for stage in (0, 1):
        model.stage = stage
        with torch.no_grad():
            assert not model(*batch(), keys()).loss.requires_grad
        assert model(*batch(), keys()).loss.requires_grad


def test_networks_share_nothing():
    model = make_model()
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
    total, model = 300, make_model(spread=0.0)
    original, segments = batch(rows=8)
    rows = Batch(original, segments, torch.arange(8, dtype=torch.int32))
    found, step = [], 0
    for _ in model.stages:
        stretch = begin_stage(model, total, OptimizerConfig(), 0, 1, step)
        for last in (stretch.begin, stretch.end):
            while step < last:
                stretch.update(rows, step, 2e-3 * min(1, (step - stretch.begin + 1) / 20))
                step += 1
            found.append(measured(model, original, segments))
        stretch.give_back(model)
    untaught, taught, blind, seeing = found
    assert step == total
    assert taught["generator_loss"] < untaught["generator_loss"] - 0.5
    assert blind["generator_loss"] == pytest.approx(taught["generator_loss"])
    assert seeing["generator_loss"] == blind["generator_loss"]
    assert seeing["auc"] > blind["auc"] + 0.15
    assert seeing["discriminator_loss"] < blind["discriminator_loss"] - 0.2


@torch.no_grad()
def measured(model: TwoStage, original: torch.Tensor, segments: torch.Tensor) -> dict[str, float]:
    outcomes = [model(original, segments, keys(seed, len(original))) for seed in range(100, 108)]
    sums = torch.stack([outcome.tallies for outcome in outcomes]).sum(0).tolist()
    metrics = model.summary(dict(zip(model.tallies, sums, strict=True)))
    if outcomes[0].scores is None:
        return metrics
    said, truth = (torch.cat([getattr(o, name) for o in outcomes]) for name in ("scores", "replaced"))
    auc = area_under_curve(said.flatten(), truth.flatten())
    assert auc is not None
    return metrics | {"auc": auc}


@pytest.mark.parametrize("change", [{"generator_width": 0.5}, {"generator_layers": 0.5}])
def test_networks_of_two_sizes_are_refused(change):
    with pytest.raises(ValueError, match="--objective.generator-width 1.0 --objective.generator-layers 1.0"):
        check(replace(CONFIG, **change))


def test_flops_a_token():
    """Half of a step of each network, and half of a question to the generator."""
    electra = Electra(SHAPE, replace(CONFIG, kind="electra"), Lexicon(SPECIALS, VOCABULARY))
    projected, layer = 2 * 16 * 32, 2 * (4 * 32**2 + 2 * 32 * 64) + 4 * LENGTH * 32
    named = masked_count(LENGTH, 0.15) / LENGTH * 2 * 16 * (32 + VOCABULARY)
    asked = projected + 2 * layer + named
    assert make_model().flops_per_token(LENGTH) == pytest.approx((electra.flops_per_token(LENGTH) + asked) / 2)
