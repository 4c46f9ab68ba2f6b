"""The choices beside the objectives: who proposes tokens, what is shared, how samples are labelled; and which pairs
are refused."""

import dataclasses
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from elektron.kernels.counters import elements
from elektron.kernels.masking import masked_count
from elektron.model.heads import Generator, merged
from elektron.model.initial import initialise
from elektron.model.two_tower import TwoTower
from elektron.objectives.choices import NEEDS, as_needed, check
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig, noise_of
from elektron.objectives.proposing import propose, temperature_at
from elektron.objectives.table import OBJECTIVES, build
from objectives.small import LENGTH, ROWS, SHAPE, SPECIALS, VOCABULARY, batch, keys_of, make_model, metrics_of
from reference import hashing
from reference.electra import SAMPLE
from reference.proposals import CALL

COUNTS = np.arange(VOCABULARY) ** 2


def make(**choices):
    return make_model(ObjectiveConfig(**choices), lexicon=Lexicon(SPECIALS, VOCABULARY, None, COUNTS))


@pytest.mark.parametrize("generator", ["uniform", "unigram"])
@pytest.mark.parametrize("disallow_correct", [False, True])
def test_tokens_drawn_without_reading(generator, disallow_correct):
    """By walking along the interval, for each masked token; and over many, in the right proportions."""
    config = ObjectiveConfig(generator=generator, disallow_correct=disallow_correct, mask_rate=0.4)
    model = make(generator=generator, disallow_correct=disallow_correct, mask_rate=0.4)
    assert model.generator is None
    shares = (COUNTS + 1) / (COUNTS + 1).sum() if generator == "unigram" else np.full(VOCABULARY, 1 / VOCABULARY)
    original, segments = batch()
    proposed = propose(None, config, model.lexicon, original, segments, noise_of(keys_of(), False))
    for row in range(ROWS):
        key = hashing.fold(hashing.row_key(0, CALL, row), SAMPLE)
        for number, target in enumerate(proposed.targets[row].tolist()):
            left = shares.copy()
            if disallow_correct:
                left[target] = 0
            place, draw = 0.0, hashing.uniform(hashing.fold(key, number)) * left.sum()
            token = -1
            while draw >= place:
                token += 1
                place += left[token]
            assert proposed.sampled[row, number].item() == token
    expected = -np.log(shares[proposed.targets.numpy()]).sum()
    assert proposed.loss.item() == pytest.approx(expected, rel=1e-5)
    assert not proposed.loss.requires_grad
    outcome = model(original, segments, keys_of())
    outcome.loss.backward()
    assert model.networks().keys() == {"discriminator"}


def test_the_proportions_of_a_unigram_generator():
    config, lexicon = ObjectiveConfig(generator="unigram", mask_rate=0.8), Lexicon(SPECIALS, VOCABULARY, None, COUNTS)
    rows = torch.full((3000, LENGTH), 7)
    noise = noise_of(elements(torch.zeros(1, dtype=torch.int32), 3000)[0], False)
    sampled = propose(None, config, lexicon, rows, torch.zeros_like(rows), noise).sampled
    found = torch.bincount(sampled.flatten(), minlength=VOCABULARY) / sampled.numel()
    assert torch.allclose(found, lexicon.frequencies, atol=0.004)


def test_a_tied_generator_is_the_encoder_with_another_head():
    model = make(generator="tied")
    assert isinstance(model.generator, Generator)
    assert model.generator.encoder is model.discriminator.encoder
    model(*batch(), keys_of()).loss.backward()
    alone = make(generator="masked", generator_width=1.0)
    assert sum(p.numel() for p in model.parameters()) < sum(p.numel() for p in alone.parameters())
    assert model.flops_per_token(LENGTH) == alone.flops_per_token(LENGTH)


def test_two_towers_read_the_row_itself():
    model = make(generator="two-tower", mask_rate=0.3)
    assert isinstance(model.generator, TwoTower)
    original, segments = batch()
    proposed = propose(model.generator, model.config, model.lexicon, original, segments, noise_of(keys_of(), False))
    logits = model.generator(original, segments)
    losses = torch.nn.functional.cross_entropy(
        logits.gather(1, proposed.positions[..., None].expand(-1, -1, VOCABULARY)).flatten(0, 1),
        proposed.targets.flatten(),
        reduction="sum",
    )
    assert proposed.loss.item() == pytest.approx(losses.item(), rel=1e-5)
    assert model.networks().keys() == {"discriminator"}


def test_a_frozen_generator_hears_nothing_and_cools_down():
    model = make(generator="frozen", sharing="none", first_temperature=4.0, temperature=0.5)
    model.train()
    model(*batch(), keys_of(), 0.5).loss.backward()
    assert all(parameter.grad is None for parameter in model.generator.parameters())
    assert model.stages[0].learns == ("discriminator.", "sentence.")
    assert not any(
        name.startswith(model.stages[0].learns) for name, _ in model.named_parameters() if "generator" in name
    )
    for progress, expected in ((0.0, 4.0), (0.5, math.sqrt(2.0)), (1.0, 0.5)):
        assert temperature_at(model.config, progress) == pytest.approx(expected)
        assert float(temperature_at(model.config, torch.tensor(progress))) == pytest.approx(expected)
    model = make(generator="frozen", sharing="none", first_temperature=1e3, temperature=1e-3, mask_rate=0.4)
    best = make(temperature=0.0, mask_rate=0.4)
    original, segments = batch()
    noise = noise_of(keys_of(), False)

    def sampled(config, progress):
        return propose(model.generator, config, model.lexicon, original, segments, noise, progress).sampled

    assert torch.equal(sampled(model.config, torch.tensor(1.0)), sampled(best.config, 1.0))
    assert (sampled(model.config, torch.tensor(0.0)) != sampled(best.config, 1.0)).double().mean() > 0.8


def test_a_temperature_of_zero_takes_the_best_guess():
    model = make(temperature=0.0, mask_rate=0.4)
    original, segments = batch()
    noise = noise_of(keys_of(), False)
    proposed = propose(model.generator, model.config, model.lexicon, original, segments, noise)
    masked = original.scatter(1, proposed.positions, SPECIALS.mask)
    best = model.generator(masked, segments).argmax(-1).gather(1, proposed.positions)
    assert torch.equal(proposed.sampled, best)


def test_a_sample_that_is_right_counts_as_replaced_in_a_gan_s_view():
    original, segments = batch()
    count = ROWS * masked_count(LENGTH, 0.3)
    for equal in ("original", "replaced"):
        model = make(equal=equal, mask_rate=0.3, temperature=0.0)
        with torch.no_grad():
            model.generator.head.bias[7] = 1000.0
        sevens = torch.where(original > 4, 7, original)
        assert model(sevens, segments, keys_of()).replaced.sum() == (count if equal == "replaced" else 0)


@pytest.mark.parametrize("kind", ["electra", "replace-mlm"])
@pytest.mark.parametrize("sharing", ["all-embeddings", "token-embeddings", "none", "gdes"])
def test_what_is_shared(kind, sharing):
    model = make(kind=kind, sharing=sharing, generator_weight=0.0, discriminator_weight=1.0)
    main = model.discriminator if kind == "electra" else model.network
    large, small = main.encoder.embeddings, model.generator.encoder.embeddings
    assert (large is small) == (sharing == "all-embeddings")
    assert (large.word is small.word) == (sharing in ("all-embeddings", "token-embeddings"))
    assert (large.position is small.position) == (sharing == "all-embeddings")
    model(*batch(), keys_of()).loss.backward()
    hears = small.word.weight.grad is not None and bool(small.word.weight.grad.any())
    assert hears == (sharing in ("all-embeddings", "token-embeddings")), "the encoder's gradient reaches the generator"
    assert large.word.weight.grad.any()
    (network, *_) = model.networks().values()
    assert network.encoder.embeddings.beneath is None
    assert torch.equal(network.encoder.embeddings.table, large.table)
    assert torch.allclose(network(*batch()), main(*batch()), atol=1e-6)


def test_differences_begin_at_zero_and_are_merged():
    model: Any = build(SHAPE, ObjectiveConfig(sharing="gdes"), Lexicon(SPECIALS, VOCABULARY))
    initialise(model, 5)
    embeddings = model.discriminator.encoder.embeddings
    assert not embeddings.word.weight.any()
    assert torch.equal(embeddings.table, model.generator.table)
    with torch.no_grad():
        embeddings.word.weight += 1.0
    plain = merged(model.discriminator)
    assert torch.equal(plain.encoder.embeddings.word.weight, model.generator.table + 1.0)
    assert set(dict(plain.named_parameters())) == {
        name for name, _ in model.discriminator.named_parameters() if "beneath" not in name
    }


def test_telling_touched_rows():
    model = make(sentence_weight=3.0)
    original, segments = batch()
    rows, kinds = original.repeat(64, 1), segments.repeat(64, 1)
    keys = elements(torch.zeros(1, dtype=torch.int32), len(rows))[0]
    outcome = model(rows, kinds, keys)
    touched = torch.tensor([hashing.uniform(hashing.fold(int(key), 5)) >= 0.2 for key in keys])
    assert 0.7 < touched.double().mean() < 0.9
    assert not outcome.replaced[~touched].any()
    assert outcome.replaced[touched].any(1).double().mean() > 0.9
    found = metrics_of(model, outcome)
    without = replace(model.config, sentence_weight=0.0)
    plain = make_model(without)
    plain.load_state_dict(model.state_dict(), strict=False)
    corrupted = torch.where(touched[:, None], _corrupted(plain, rows, kinds, keys), rows)
    hidden = model.discriminator.encoder(corrupted, kinds)
    scores = model.sentence.score(hidden[:, 0])[:, 0]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, touched.float()).item()
    assert found["sentence_loss"] == pytest.approx(loss, rel=1e-5)
    assert found["sentence_accuracy"] == pytest.approx(((scores > 0) == touched).double().mean().item())
    assert found["loss"] == pytest.approx(outcome.loss.item(), rel=1e-5)


def _corrupted(model, rows, segments, keys):
    proposed = propose(model.generator, model.config, model.lexicon, rows, segments, noise_of(keys, False))
    return rows.scatter(1, proposed.positions, proposed.sampled)


REFUSED = [
    ({"kind": "electric"}, "needs --objective.generator two-tower"),
    ({"kind": "two-stage"}, "needs --objective.generator-width 1.0 --objective.generator-layers 1.0"),
    ({"kind": "electric", "generator": "two-tower", "temperature": 2.0}, "is not for the objective electric"),
    ({"kind": "mlm", "generator": "uniform"}, "--objective.generator uniform is not for the objective mlm"),
    ({"kind": "mlm", "sharing": "gdes"}, "--objective.sharing gdes is not for the objective mlm"),
    ({"kind": "span", "masking": "whole-word"}, "chooses stretches by itself"),
    ({"kind": "replace-mlm", "equal": "replaced"}, "only replaced token detection"),
    ({"kind": "adversarial", "disallow_correct": True}, "own chances drew it"),
    ({"kind": "all-tokens-mlm", "sentence_weight": 1.0}, "only replaced token detection"),
    ({"generator": "tied", "sharing": "none"}, "one set of embeddings"),
    ({"generator": "frozen"}, "add --objective.sharing none"),
    ({"generator": "uniform", "sharing": "gdes"}, "no embeddings to share"),
    ({"generator": "unigram", "temperature": 0.5}, "no logits"),
    ({"generator": "two-tower", "keep_rate": 0.1}, "reads none"),
    ({"masking": "span", "draws": "with-replacement"}, "for --objective.masking uniform"),
    ({"equal": "replaced", "disallow_correct": True}, "leaves no sample"),
]  # fmt: skip


@pytest.mark.parametrize(("choices", "sentence"), REFUSED)
def test_pairs_that_mean_nothing_are_refused(choices, sentence):
    with pytest.raises(ValueError, match=sentence):
        check(ObjectiveConfig(**choices))


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_any_config_becomes_one_of_another_objective(kind):
    strange = ObjectiveConfig(
        masking="span", temperature=2.0, disallow_correct=True, sharing="gdes", sentence_weight=1.0, generator_width=0.5
    )
    found = as_needed(strange, kind)
    assert check(found).kind == kind
    for name, value in NEEDS.get(kind, {}).items():
        assert getattr(found, name) == value
    changed = {f.name for f in dataclasses.fields(found) if getattr(found, f.name) != getattr(strange, f.name)}
    assert "mask_rate" not in changed
    assert as_needed(found, kind) == found
