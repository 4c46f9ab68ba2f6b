from dataclasses import replace

import pytest
import torch

from elektron.kernels.masking import masked_count
from elektron.model.encoder import EncoderConfig
from elektron.objectives.electra import Electra
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig, generator_shape
from elektron.presets import PRESETS
from objectives.small import (
    LENGTH,
    ROWS,
    SHAPE,
    SPECIALS,
    assert_silent,
    batch,
    keys_of,
    make_model,
    mean,
    metrics_of,
    rows_of,
)
from reference import electra as reference

CONFIGS = {
    "default": ObjectiveConfig(),
    "paper": ObjectiveConfig(draws="with-replacement", keep_rate=0.15, mask_rate=0.3),
    "hot": ObjectiveConfig(temperature=2.0, disallow_correct=True, mask_rate=0.25),
    "weights": ObjectiveConfig(
        generator_weight=0.5, discriminator_weight=7.0, generator_width=1.0, generator_layers=0.5
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(3))
def test_a_pass_is_the_reference(name, seed):
    """Positions, masks, samples, labels and both losses, row by row from the definitions."""
    config = CONFIGS[name]
    model = make_model(config)
    outcome = model(*batch(seed), keys_of(seed))

    rows = rows_of(config, model.generator, seed)
    discriminator_losses = []
    for row, found in zip(rows, outcome.scores.tolist(), strict=True):
        scores = model.discriminator(torch.tensor([row.corrupted]), row.segments)[0].tolist()
        pairs = zip(scores, row.replaced, strict=True)
        discriminator_losses += [reference.binary_cross_entropy(*pair) for pair in pairs]
        assert found == pytest.approx(scores, abs=1e-5)

    assert outcome.replaced.tolist() == [row.replaced for row in rows]
    generator_loss = mean([loss for row in rows for loss in row.generator_losses])
    discriminator_loss = mean(discriminator_losses)
    expected = config.generator_weight * generator_loss + config.discriminator_weight * discriminator_loss
    assert outcome.loss.item() == pytest.approx(expected, rel=1e-5)
    metrics = metrics_of(model, outcome)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["generator_loss"] == pytest.approx(generator_loss, rel=1e-5)
    assert metrics["discriminator_loss"] == pytest.approx(discriminator_loss, rel=1e-5)
    assert metrics["replaced_rate"] == pytest.approx(sum(sum(row.replaced) for row in rows) / (ROWS * LENGTH))
    flagged = outcome.scores > 0
    caught = (flagged & outcome.replaced).sum().item()
    assert metrics["discriminator_recall"] == pytest.approx(caught / max(1, outcome.replaced.sum().item()))
    assert metrics["discriminator_precision"] == pytest.approx(caught / max(1, flagged.sum().item()))
    assert metrics["discriminator_accuracy"] == pytest.approx((flagged == outcome.replaced).double().mean().item())


def test_samples_that_are_right_are_labelled_original():
    """A generator that always knows the answer leaves nothing replaced; one that may not say it replaces everything."""
    original, segments = batch()
    original[original > 4] = 7
    for disallow, expected in ((False, 0), (True, ROWS * masked_count(LENGTH, 0.15))):
        model = make_model(ObjectiveConfig(disallow_correct=disallow))
        with torch.no_grad():
            model.generator.head.bias.fill_(-100.0)
            model.generator.head.bias[7] = 100.0
            model.generator.head.bias[8] = 50.0
        assert model(original, segments, keys_of()).replaced.sum() == expected


def test_the_discriminator_teaches_the_generator_nothing():
    """Only the embeddings, which are shared, hear of both losses; a sample carries no gradient."""
    assert_silent(make_model(ObjectiveConfig(generator_weight=0.0)), "generator.")
    assert_silent(make_model(ObjectiveConfig(discriminator_weight=0.0)), "discriminator.")


def test_embeddings_and_their_norm_are_shared():
    model = make_model(ObjectiveConfig())
    assert model.generator.encoder.embeddings is model.discriminator.encoder.embeddings
    assert model.generator.encoder.project is not model.discriminator.encoder.project


def test_dropout_is_for_training_and_the_same_in_any_part_of_a_batch():
    model = make_model(ObjectiveConfig(), replace(SHAPE, dropout=0.2, attention_dropout=0.2))
    (original, segments), keys = batch(), keys_of()
    model.train()
    whole = model(original, segments, keys).scores
    halves = [model(original[i : i + 2], segments[i : i + 2], keys[i : i + 2]).scores for i in (0, 2)]
    assert torch.allclose(whole, torch.cat(halves), atol=1e-5)
    model.eval()
    assert not torch.allclose(whole, model(original, segments, keys).scores, atol=1e-3)


@pytest.mark.parametrize(
    ("preset", "shape"),
    [("small", (64, 1, 256, 12)), ("base", (256, 4, 1024, 12)), ("large", (256, 4, 1024, 24))],
)
def test_generators_have_the_paper_s_sizes(preset, shape):
    small = generator_shape(EncoderConfig(**PRESETS[preset]["model"]), ObjectiveConfig(**PRESETS[preset]["objective"]))
    assert (small.width, small.heads, small.feedforward_width, small.layers) == shape


@pytest.mark.parametrize(
    ("preset", "discriminator", "own", "total"),
    [
        ("small", 13.48 + 0.066, 0.65, 14.20),
        ("base", 108.89 + 0.59, 9.90, 119.39),
        ("large", 334.09 + 1.05, 19.51, 354.66),
    ],
)
def test_parameters_are_the_original_s(preset, discriminator, own, total):
    """Millions, as counted from Google's code (embeddings shared; a vocabulary of 30,522)."""
    with torch.device("meta"):
        model = Electra(
            EncoderConfig(**PRESETS[preset]["model"]),
            ObjectiveConfig(**PRESETS[preset]["objective"]),
            Lexicon(SPECIALS, 30522),
        )
    count = {id(p): p.numel() for p in model.parameters()}
    in_discriminator = {id(p) for p in model.discriminator.parameters()}
    assert sum(n for i, n in count.items() if i in in_discriminator) / 1e6 == pytest.approx(discriminator, abs=0.01)
    assert sum(n for i, n in count.items() if i not in in_discriminator) / 1e6 == pytest.approx(own, abs=0.01)
    assert sum(count.values()) / 1e6 == pytest.approx(total, abs=0.01)


@pytest.mark.parametrize(("preset", "length", "flops"), [("small", 128, 70.2), ("base", 128, 611), ("base", 512, 668)])
def test_flops_a_token(preset, length, flops):
    """Millions, forward and backward, matrix products alone."""
    with torch.device("meta"):
        model = Electra(
            EncoderConfig(**PRESETS[preset]["model"]),
            ObjectiveConfig(**PRESETS[preset]["objective"]),
            Lexicon(SPECIALS, 30522),
        )
    assert model.flops_per_token(length) / 1e6 == pytest.approx(flops, rel=0.005)


@pytest.mark.parametrize("change", [{"mask_rate": 0.0}, {"mask_rate": 1.0}, {"temperature": -0.1}])
def test_impossible_objectives_are_refused(change):
    with pytest.raises(ValueError, match="--objective"):
        ObjectiveConfig(**change)
