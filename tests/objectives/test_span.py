from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from elektron.kernels.masking import masked_count
from elektron.objectives.choices import check
from elektron.objectives.objective import ObjectiveConfig, noise_of
from elektron.objectives.span import Span, offsets_of, view_of
from objectives.small import (
    LENGTH,
    ROWS,
    SHAPE,
    SPECIALS,
    assert_silent,
    batch,
    gradients_of,
    keys_of,
    make_model,
    metrics_of,
)
from reference import electra, hashing
from reference import span as reference
from reference import units as unit_reference
from reference.proposals import CALL

DEFAULT = ObjectiveConfig(kind="span", mask_rate=0.4, generator_width=0.5)
CONFIGS = {
    "default": DEFAULT,
    "hot": replace(DEFAULT, temperature=2.0, disallow_correct=True, span_mean=5.0),
    "short": replace(DEFAULT, span_longest=2, generator_weight=0.5, discriminator_weight=7.0),
    "most": replace(DEFAULT, mask_rate=0.9, span_longest=3),
}


def expected_of_row(model: Span, tokens: list[int], segments: list[int], key: int):
    """The losses of the generator, those of the discriminator, and its scores and labels."""
    config = model.config
    candidates = [token not in (SPECIALS.cls, SPECIALS.sep) for token in tokens]
    places = unit_reference.random_begins(
        candidates, config.span_mean, config.span_longest, hashing.fold(key, reference.UNITS)
    )
    begins = [place in places for place in range(len(tokens))]
    count = masked_count(len(tokens), config.mask_rate)
    positions = unit_reference.stretches(candidates, begins, count, hashing.fold(key, reference.POSITIONS))
    masked = [SPECIALS.mask if place in positions else token for place, token in enumerate(tokens)]

    def draw(logits: torch.Tensor, position: int) -> int:
        forbidden = tokens[position] if config.disallow_correct else None
        noise = hashing.fold(hashing.fold(key, reference.SAMPLE), positions.index(position))
        return electra.sampled_token(logits.tolist(), config.temperature, forbidden, noise)

    losses, sampled = [], []
    for stretch in reference.stretches(positions, config.span_longest):
        next_logits = partial(reference.next_logits, model.generator, masked, segments, stretch, mask=SPECIALS.mask)
        sampled += reference.samples(stretch, next_logits, draw)
        originals = [tokens[place] for place in stretch]
        for number, token in enumerate(originals):
            losses.append(-next_logits(originals[:number]).log_softmax(0)[token])
    corrupted = electra.corrupted_row(tokens, positions, sampled)
    replaced = [a != b for a, b in zip(corrupted, tokens, strict=True)]
    scores = model.discriminator(torch.tensor([corrupted]), torch.tensor([segments]))[0]
    judged = [F.softplus(-score if label else score) for score, label in zip(scores, replaced, strict=True)]
    return losses, judged, scores.tolist(), replaced


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(2))
def test_a_pass_is_the_reference(name, seed):
    """Positions, samples one at a time, labels, losses and their gradients, from the definitions."""
    config = CONFIGS[name]
    model = make_model(config)
    original, segments = batch(seed)
    outcome = model(original, segments, keys_of(seed))
    outcome.loss.backward()
    gradients = gradients_of(model)
    model.zero_grad(set_to_none=True)

    of_generator, of_discriminator = [], []
    for row in range(ROWS):
        key = hashing.row_key(seed, CALL, row)
        losses, judged, scores, replaced = expected_of_row(model, original[row].tolist(), segments[row].tolist(), key)
        of_generator += losses
        of_discriminator += judged
        assert outcome.scores[row].tolist() == pytest.approx(scores, abs=1e-4)
        assert outcome.replaced[row].tolist() == replaced
    generator_loss, discriminator_loss = torch.stack(of_generator).mean(), torch.stack(of_discriminator).mean()
    loss = config.generator_weight * generator_loss + config.discriminator_weight * discriminator_loss
    loss.backward()
    assert outcome.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert len(gradients) == len(list(model.parameters()))
    for name, gradient in gradients_of(model).items():
        assert torch.allclose(gradients[name], gradient, rtol=1e-3, atol=1e-4), name
    metrics = metrics_of(model, outcome)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["generator_loss"] == pytest.approx(generator_loss.item(), rel=1e-5)
    assert metrics["discriminator_loss"] == pytest.approx(discriminator_loss.item(), rel=1e-5)
    changed = outcome.replaced.sum().item()
    assert metrics["replaced_rate"] == pytest.approx(changed / (ROWS * LENGTH))
    assert metrics["sampled_accuracy"] == pytest.approx(1 - changed / len(of_generator))


def test_stretches_that_touch_are_one_and_long_ones_are_cut():
    assert offsets_of(torch.tensor([[3, 4, 5, 6, 9, 10, 12]]), 3).tolist() == [[0, 1, 2, 0, 0, 1, 0]]
    assert offsets_of(torch.tensor([[3, 4, 5, 6, 9, 10, 12]]), 6).tolist() == [[0, 1, 2, 3, 0, 1, 0]]
    assert offsets_of(torch.tensor([[7]]), 6).tolist() == [[0]]


def test_a_token_sees_the_row_and_its_stretch_so_far():
    view = view_of(torch.tensor([[0, 1, 0]]), 2).int().tolist()
    assert view == [[[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 1]]]


def test_samples_under_dropout_come_from_the_network_that_learns():
    """In passes as one token at a time, with what is dropped the same in all of them; the first token of a stretch is
    the sample of the pass that learns."""
    model = make_model(DEFAULT, replace(SHAPE, dropout=0.2, attention_dropout=0.2)).train()
    noise = noise_of(keys_of(), True)
    gaps = model._hide(*batch(), noise)
    proposed = model._propose(gaps, noise, 1.0)
    sampled = torch.full_like(gaps.targets, SPECIALS.unk)
    with torch.no_grad():
        for gap in range(gaps.targets.shape[1]):
            said = model._said(gaps, sampled, noise, 1.0).sampled.view_as(sampled)
            sampled[:, gap] = said[:, gap]
        taught = model._said(gaps, gaps.targets, noise, 1.0).sampled.view_as(sampled)
    assert torch.equal(proposed.sampled, sampled)
    begins = gaps.offsets == 0
    assert torch.equal(proposed.sampled[begins], taught[begins])
    assert not torch.equal(proposed.sampled, taught)


def test_the_discriminator_teaches_the_generator_nothing():
    """Only the embeddings, which are shared, hear of both losses; a sample carries no gradient."""
    assert_silent(make_model(replace(DEFAULT, generator_weight=0.0)), "generator.")
    assert_silent(make_model(replace(DEFAULT, discriminator_weight=0.0)), "discriminator.")


def test_dropout_is_for_training_and_the_same_in_any_part_of_a_batch():
    model = make_model(DEFAULT, replace(SHAPE, dropout=0.2, attention_dropout=0.2)).train()
    (original, segments), keys = batch(), keys_of()
    whole = model(original, segments, keys).scores
    parts = [model(original[i : i + 1], segments[i : i + 1], keys[i : i + 1]).scores for i in range(ROWS)]
    assert torch.allclose(whole, torch.cat(parts), atol=1e-5)
    model.eval()
    assert not torch.allclose(whole, model(original, segments, keys).scores, atol=1e-3)


@pytest.mark.parametrize("longest", [1, 4])
def test_flops_are_those_of_the_products(longest):
    """As torch counts them, in a pass and back; attention's are plain products where something is dropped."""
    config = replace(DEFAULT, span_longest=longest)
    model = make_model(config, replace(SHAPE, dropout=0.1, attention_dropout=0.1)).train()
    with FlopCounterMode(display=False) as counter:
        model(*batch(), keys_of()).loss.backward()
    assert counter.get_total_flops() == pytest.approx(ROWS * LENGTH * model.flops_per_token(LENGTH), rel=0.01)


def test_the_generator_is_not_exported():
    model = make_model(DEFAULT)
    assert isinstance(model, Span)
    assert list(model.networks()) == ["discriminator"]
    assert model.encoder is model.discriminator.encoder


@pytest.mark.parametrize(
    "change",
    [{"keep_rate": 0.15}, {"draws": "with-replacement"}, {"masking": "whole-word"}, {"generator": "two-tower"}],
)
def test_what_it_cannot_do_is_refused(change):
    (name,) = change
    with pytest.raises(ValueError, match=f"--objective.{name.replace('_', '-')}"):
        check(replace(DEFAULT, **change))


@pytest.mark.parametrize("change", [{"span_mean": 0.5}, {"span_longest": 0}])
def test_impossible_stretches_are_refused(change):
    with pytest.raises(ValueError, match="--objective.span-"):
        ObjectiveConfig(**change)
