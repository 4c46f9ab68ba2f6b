import math
from dataclasses import replace

import pytest
import torch

from elektron.data.batches import Rows
from elektron.kernels.counters import seed_key
from elektron.kernels.masking import masked_count
from elektron.kernels.vocabulary import Spoken, speak
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.model.weights import lower
from elektron.objectives import electric
from elektron.objectives.electric import Electric, noise_logits, pseudo_log_likelihood
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig
from elektron.objectives.table import build
from elektron.presets import PRESETS
from elektron.train.evaluate import evaluate
from elektron.train.loop import held_batches
from elektron.train.optimizer import Optimizer, OptimizerConfig
from elektron.train.step import update
from objectives.small import (
    LENGTH,
    ROWS,
    SHAPE,
    SPECIALS,
    VOCABULARY,
    assert_silent,
    batch,
    keys_of,
    make_model,
    metrics_of,
)
from reference import electric as reference
from reference import hashing
from reference.electra import cross_entropy
from reference.proposals import CALL

CONFIG = ObjectiveConfig(kind="electric", generator="two-tower")


def uneven(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that differ in how many ordinary tokens they have."""
    original, segments = batch(seed)
    original[1, 15] = SPECIALS.sep
    return original, segments


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, mask_rate=0.4),
        replace(CONFIG, generator_weight=0.5, discriminator_weight=7.0, generator_width=1.0, generator_layers=0.5),
    ],
    ids=["default", "many", "weights"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_pass_is_the_reference(config, seed):
    """Positions, samples, labels, logits and both losses, row by row from the definitions."""
    model = make_model(config)
    original, segments = uneven(seed)
    count = masked_count(LENGTH, config.mask_rate)
    logits, labels, noise_losses, contrast_losses = [], [], [], []
    for row in range(ROWS):
        tokens = original[row].tolist()
        places = reference.ordinary_places(tokens, {SPECIALS.cls, SPECIALS.sep})
        words = model.generator(original[row : row + 1], segments[row : row + 1])[0].tolist()
        noised = reference.noised_row(tokens, words, places, count, hashing.row_key(seed, CALL, row))
        energies = model.discriminator(torch.tensor([noised.corrupted]), segments[row : row + 1])[0].tolist()
        for i in places:
            chances = math.exp(-energies[i]), math.exp(noised.log_q[i]), count, len(places)
            found = reference.posterior(*chances)
            logits.append(math.log(found / (1 - found)))
            labels.append(noised.labels[i])
            noise_losses.append(cross_entropy(words[i], tokens[i]))
            contrast_losses.append(
                reference.contrast_loss(energies[i], noised.log_q[i], count, len(places), noised.labels[i])
            )

    outcome = model(original, segments, keys_of(seed))
    assert outcome.replaced.tolist() == labels
    assert outcome.scores.tolist() == pytest.approx(logits, abs=1e-4)
    noise_loss, contrast_loss = sum(noise_losses) / len(labels), sum(contrast_losses) / len(labels)
    expected = config.generator_weight * noise_loss + config.discriminator_weight * contrast_loss
    assert outcome.loss.item() == pytest.approx(expected, rel=1e-5)
    metrics = metrics_of(model, outcome)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["generator_loss"] == pytest.approx(noise_loss, rel=1e-5)
    assert metrics["discriminator_loss"] == pytest.approx(contrast_loss, rel=1e-5)
    assert metrics["replaced_rate"] == pytest.approx(ROWS * count / len(labels))
    flagged, sampled = outcome.scores > 0, outcome.replaced
    caught = (flagged & sampled).sum().item()
    assert metrics["discriminator_recall"] == pytest.approx(caught / sampled.sum().item())
    assert metrics["discriminator_precision"] == pytest.approx(caught / max(1, flagged.sum().item()))
    assert metrics["discriminator_accuracy"] == pytest.approx((flagged == sampled).double().mean().item())


def test_training_is_the_same_pass_without_scores():
    """What a GPU's recording could not hold is left out; nothing else changes."""
    model = make_model(CONFIG)
    expected = model(*uneven(), keys_of())
    found = model.train()(*uneven(), keys_of())
    assert found.scores is None
    assert found.replaced is None
    assert found.loss == expected.loss
    assert torch.equal(found.tallies, expected.tallies)


def test_training_s_shapes_do_not_depend_on_the_text():
    """Tensors without values are enough for a pass and its gradients, so a GPU's recording is too."""
    shape = replace(SHAPE, dropout=0.1, attention_dropout=0.1)
    with torch.device("meta"):
        model = Electric(shape, CONFIG, Lexicon(SPECIALS, VOCABULARY))
    given = [tensor.to("meta") for tensor in (*uneven(), keys_of())]
    model.train()(*given).loss.backward()
    with pytest.raises(NotImplementedError):
        model.eval()(*given)


def test_in_lower_precision_the_odds_are_still_float32():
    model, exact = make_model(CONFIG), make_model(CONFIG)
    lower(model, torch.bfloat16)
    outcome, expected = model(*uneven(), keys_of()), exact(*uneven(), keys_of())
    assert outcome.scores.dtype == outcome.loss.dtype == torch.float32
    outcome.loss.backward()
    assert outcome.loss.item() == pytest.approx(expected.loss.item(), rel=0.1)


P = [0.5, 0.2, 0.2, 0.08, 0.02]
Q = [0.1, 0.3, 0.05, 0.25, 0.3]


@pytest.mark.parametrize(("sampled", "ordinary"), [(1, 2), (3, 17), (19, 125), (100, 125)])
def test_the_logit_is_that_of_the_posterior(sampled, ordinary):
    """With energies of -log p, sigmoid(logit) is Bayes' rule over a vocabulary that is written out."""
    energies, log_q = -torch.tensor([P]).double().log(), torch.tensor([Q]).double().log()
    found = noise_logits(energies, log_q, torch.tensor([sampled]), torch.tensor([ordinary])).sigmoid()[0].tolist()
    expected = [reference.posterior(p, q, sampled, ordinary) for p, q in zip(P, Q, strict=True)]
    assert found == pytest.approx(expected, rel=1e-6)


def test_the_best_energies_are_minus_log_p():
    """The loss, summed over the vocabulary, is least where exp(-E) is the text's distribution: it comes out normed."""
    best = [-math.log(p) for p in P]
    least = reference.expected_loss(best, P, Q, 3, 17)
    for word in range(len(P)):
        for change in (-0.1, 0.1):
            other = [energy + change * (i == word) for i, energy in enumerate(best)]
            assert reference.expected_loss(other, P, Q, 3, 17) > least
    for change in (-0.1, 0.1):
        assert reference.expected_loss([energy + change for energy in best], P, Q, 3, 17) > least


@pytest.mark.parametrize("knows", [True, False])
def test_a_sample_is_noise_even_if_it_is_right(knows):
    """A noise model that always, or never, says what stood there: the labels are the same."""
    original, segments = uneven()
    original[original > 4] = 7
    model = make_model(CONFIG)
    with torch.no_grad():
        model.generator.head.bias.fill_(-100.0)
        model.generator.head.bias[7 if knows else 8] = 100.0
    outcome = model(original, segments, keys_of())
    metrics = metrics_of(model, outcome)
    assert metrics["sampled_accuracy"] == metrics["generator_accuracy"] == float(knows)
    assert outcome.replaced.sum() == ROWS * masked_count(LENGTH, CONFIG.mask_rate)


def test_the_contrast_teaches_the_noise_model_nothing():
    """Only the embeddings, which are shared, hear of both losses: neither samples nor log q carry a gradient."""
    assert_silent(make_model(replace(CONFIG, generator_weight=0.0)), "generator.")
    assert_silent(make_model(replace(CONFIG, discriminator_weight=0.0)), "discriminator.")


def test_log_q_reaches_not_even_the_embeddings(monkeypatch):
    """The whole gradient of the contrast is that of the energies: the same if nothing that is said can be learned."""
    model = make_model(replace(CONFIG, generator_weight=0.0, discriminator_weight=1.0))
    parameters = list(model.discriminator.parameters())
    found = torch.autograd.grad(model(*uneven(), keys_of()).loss, parameters)
    with monkeypatch.context() as patch:
        patch.setattr(electric, "speak", lambda *given: Spoken(*(said.detach() for said in speak(*given))))
        expected = torch.autograd.grad(model(*uneven(), keys_of()).loss, parameters)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-7)


@pytest.mark.parametrize("sharing", ["all-embeddings", "token-embeddings", "none", "gdes"])
def test_what_is_shared(sharing):
    model = make_model(replace(CONFIG, sharing=sharing))
    large, small = model.discriminator.encoder.embeddings, model.generator.left.embeddings
    assert model.generator.right.embeddings is small
    assert (large is small) == (sharing == "all-embeddings")
    assert (large.word is small.word) == (sharing in ("all-embeddings", "token-embeddings"))
    assert all(
        slopes.any() for slopes in torch.autograd.grad(model(*uneven(), keys_of()).loss, list(model.parameters()))
    )
    found = model.networks()["discriminator"](*uneven())
    assert torch.allclose(found, model.discriminator(*uneven()), atol=1e-5)


def test_dropout_is_for_training_and_the_same_in_any_part_of_a_batch():
    model = make_model(CONFIG, replace(SHAPE, dropout=0.2, attention_dropout=0.2))
    (original, segments), keys = uneven(), keys_of()
    whole = model.train()(original, segments, keys)
    halves = [model(original[i : i + 2], segments[i : i + 2], keys[i : i + 2]) for i in (0, 2)]
    assert torch.allclose(whole.tallies, halves[0].tallies + halves[1].tallies, rtol=1e-5)
    assert not torch.allclose(whole.tallies, model.eval()(original, segments, keys).tallies, rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"temperature": 0.9}, "temperature"),
        ({"temperature": 0.0}, "temperature"),
        ({"first_temperature": 2.0}, "first-temperature"),
        ({"disallow_correct": True}, "disallow-correct"),
        ({"draws": "with-replacement"}, "draws"),
        ({"masking": "frequency"}, "masking"),
        ({"equal": "replaced"}, "equal"),
        ({"sentence_weight": 1.0}, "sentence-weight"),
    ],
)
def test_settings_that_hide_the_chance_of_a_sample_are_refused(change, name):
    with pytest.raises(ValueError, match=f"--objective.{name} "):
        build(SHAPE, replace(CONFIG, **change), Lexicon(SPECIALS, VOCABULARY))


def test_a_row_that_is_all_noise_is_refused():
    with pytest.raises(ValueError, match="--objective.mask-rate"):
        make_model(replace(CONFIG, mask_rate=0.9))(*uneven(), keys_of())


def test_rows_of_hardly_any_ordinary_tokens_do_no_harm():
    model = make_model(CONFIG)
    original, segments = uneven()
    original[2, 2:] = SPECIALS.sep  # fewer than there are to choose
    original[3] = SPECIALS.sep
    outcome = model(original, segments, keys_of())
    assert outcome.loss.isfinite()
    assert all(slopes.isfinite().all() for slopes in torch.autograd.grad(outcome.loss, list(model.parameters())))


def test_pseudo_log_likelihood():
    """The sum of what one pass says, whatever a row is padded with."""
    model = make_model(CONFIG)
    original, segments = uneven()
    energies = model.discriminator(original, segments)
    found = pseudo_log_likelihood(model.discriminator, original, segments, SPECIALS)
    for row in range(ROWS):
        places = reference.ordinary_places(original[row].tolist(), {SPECIALS.cls, SPECIALS.sep})
        assert found[row].item() == pytest.approx(-sum(energies[row, i].item() for i in places), rel=1e-5)
    mask = torch.ones_like(original)
    mask[:, 10:] = 0
    original[:, 10:] = SPECIALS.pad
    padded = pseudo_log_likelihood(model.discriminator, original, segments, SPECIALS, mask)
    alone = pseudo_log_likelihood(model.discriminator, original[:, :10], segments[:, :10], SPECIALS)
    assert torch.allclose(padded, alone, atol=1e-4)


def test_what_comes_out_and_what_it_costs():
    """Millions of FLOPs a token, forward and backward, matrix products alone: by hand, for the small preset."""
    with torch.device("meta"):
        model = Electric(EncoderConfig(**PRESETS["small"]["model"]), CONFIG, Lexicon(SPECIALS, 30522))
    assert model.networks() == {"discriminator": model.discriminator}
    assert model.encoder is model.discriminator.encoder
    assert len(model.encoders()) == 3
    large = 2 * 128 * 256 + 12 * (2 * (4 * 256**2 + 2 * 256 * 1024) + 4 * 128 * 256) + 2 * 256 * 257
    tower = 2 * 128 * 64 + 12 * (2 * (4 * 64**2 + 2 * 64 * 256) + 4 * 128 * 64)
    words = 2 * 128 * 30522
    noise = 2 * tower + 2 * (2 * 64) * 128 + words
    assert model.flops_per_token(128) == pytest.approx(3 * (large + noise) + 19 / 128 * words)


def test_it_learns_how_likely_text_is(data):
    """On the little language: the contrast costs less than half of what it did, energies are near the noise model's
    own losses, as both are -log p, and a shuffled row is much less likely than the row."""
    specials = data.tokenizer.specials
    shape = replace(SHAPE, layers=1, width=64, heads=2, feedforward_width=128, embedding_width=64)
    config = replace(CONFIG, generator_weight=0.2, generator_width=0.5)
    model = Electric(shape, config, Lexicon(specials, data.index.vocab_size))
    initialise(model, 0)
    held = held_batches(data, 24, 32, 32)
    ((original, segments, _),) = held
    start = evaluate(model, held, torch.device("cpu"))
    rows, optimizer = Rows(data.train, specials, 24, seed_key(0)), Optimizer(model, OptimizerConfig())
    for step in range(150):
        rate = 2e-3 * min(1, (step + 1) / 20)
        update(model, optimizer, 0, 1, rows.batch(step, 16), torch.tensor(step, dtype=torch.int32), rate)
    found = evaluate(model, held, torch.device("cpu"))
    assert found["discriminator_loss"] < 0.5 * start["discriminator_loss"]
    assert found["generator_loss"] < 0.5 * start["generator_loss"]
    shuffled, noise = original.clone(), torch.Generator().manual_seed(0)
    for row in shuffled:
        places = torch.tensor(reference.ordinary_places(row.tolist(), {specials.cls, specials.sep}))
        row[places] = row[places[torch.randperm(len(places), generator=noise)]]
    count = original.shape[1] - 3
    likely, unlikely = (
        pseudo_log_likelihood(model.discriminator, rows, segments, specials) / count for rows in (original, shuffled)
    )
    assert (likely > unlikely + 1).all()
    assert -likely.mean().item() == pytest.approx(found["generator_loss"], abs=0.7)
