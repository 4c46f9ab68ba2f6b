from dataclasses import replace

import pytest
import torch

from elektron.kernels.masking import masked_count
from elektron.objectives.adversarial import Adversarial
from elektron.objectives.choices import check
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig
from objectives.small import LENGTH, SPECIALS, VOCABULARY, batch, keys_of, learn, make_model, metrics_of
from reference import adversarial as reference
from reference import electra, proposals

CONFIG = ObjectiveConfig(kind="adversarial", generator_width=0.5)
APART = replace(CONFIG, sharing="none")
CONFIGS = {
    "default": CONFIG,
    "paper": replace(CONFIG, draws="with-replacement", keep_rate=0.15, mask_rate=0.3),
    "weights": replace(APART, generator_weight=3.0, discriminator_weight=7.0, generator_width=1.0),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(2))
def test_a_pass_is_the_reference(name, seed):
    """Samples, rewards, the loss and all gradients, token by token from the definitions."""
    config = CONFIGS[name]
    model = make_model(config)
    original, segments = batch(seed)
    outcome = model(original, segments, keys_of(seed))

    positions, masked = proposals.gaps(original, config, SPECIALS, masked_count(LENGTH, config.mask_rate), seed)
    logits = model.generator(torch.tensor(masked), segments)
    sampled = proposals.samples(logits, positions, seed)
    corrupted = torch.tensor(proposals.corrupted(original, positions, sampled))
    given = positions, torch.tensor(masked), sampled, corrupted
    expected, rewards = reference.loss(model, original, segments, *given)
    assert torch.equal(outcome.replaced, corrupted != original)
    assert outcome.loss.item() == pytest.approx(expected.item(), rel=1e-5)

    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(outcome.loss, parameters)
    for name, ours, theirs in zip(names, found, torch.autograd.grad(expected, parameters), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * theirs.abs().max().item()), name

    metrics = metrics_of(model, outcome)
    places = [(row, place) for row, of_row in enumerate(positions) for place in of_row]
    likelihoods = [electra.cross_entropy(logits[place].tolist(), int(original[place])) for place in places]
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["reward"] == pytest.approx(sum(rewards) / len(rewards), rel=1e-4)
    assert metrics["generator_loss"] == pytest.approx(sum(likelihoods) / len(likelihoods), rel=1e-5)


def test_the_estimate_is_right_in_the_mean():
    """One masked position, ten words: the gradient of each sample, weighed by its chances, sums up to that of the
    expected reward, whatever the baseline says."""
    words, row = 10, torch.tensor([[SPECIALS.cls, SPECIALS.sep, 7, SPECIALS.sep]])
    segments = torch.zeros_like(row)
    model = make_model(replace(APART, discriminator_weight=0.0, mask_rate=0.3), lexicon=Lexicon(SPECIALS, words))
    parameters = list(model.generator.parameters())
    masked = row.clone()
    masked[0, 2] = SPECIALS.mask
    chances = model.generator(masked, segments)[0, 2].softmax(-1)

    found, rewards = {}, {}
    for seed in range(3000):
        outcome = model(row, segments, keys_of(seed, 1))
        word = _sampled(model, row, segments, seed)
        if word not in found:
            found[word] = torch.autograd.grad(outcome.loss, parameters)
            corrupted = row.clone()
            corrupted[0, 2] = word
            score = model.discriminator(corrupted, segments)[0, 2].item()
            rewards[word] = electra.binary_cross_entropy(score, word != 7)
        if len(found) == words:
            break
    assert sorted(found) == list(range(words))

    earned = torch.stack([chances[word] * rewards[word] for word in range(words)]).sum()
    expected = torch.autograd.grad(-earned, parameters)
    for number, gradient in enumerate(expected):
        mean = torch.stack([chances[word].detach() * found[word][number] for word in range(words)]).sum(0)
        assert torch.allclose(mean, gradient, rtol=1e-3, atol=1e-5 * gradient.abs().max().item() + 1e-7)
    assert any(gradient.abs().max() > 1e-3 for gradient in expected)


def _sampled(model: Adversarial, row: torch.Tensor, segments: torch.Tensor, seed: int) -> int:
    positions, masked = proposals.gaps(row, model.config, SPECIALS, 1, seed)
    assert positions == [[2]]
    return proposals.samples(model.generator(torch.tensor(masked), segments), positions, seed)[0][0]


def test_a_sample_that_pays_becomes_likelier():
    """A step against the gradient raises the chances of what earned more than expected, and lowers the others'."""
    row = torch.tensor([[SPECIALS.cls, SPECIALS.sep, 7, SPECIALS.sep]])
    segments = torch.zeros_like(row)
    for expectation, sign in ((-10.0, 1), (10.0, -1)):
        model = make_model(replace(APART, discriminator_weight=0.0, mask_rate=0.3), lexicon=Lexicon(SPECIALS, 10))
        with torch.no_grad():
            model.baseline.score.weight.zero_()
            model.baseline.score.bias.fill_(expectation)
        word = _sampled(model, row, segments, 0)
        masked = torch.tensor([[SPECIALS.cls, SPECIALS.sep, SPECIALS.mask, SPECIALS.sep]])
        before = model.generator(masked, segments)[0, 2].softmax(-1)[word].item()
        model(row, segments, keys_of(0, 1)).loss.backward()
        with torch.no_grad():
            for parameter in model.generator.parameters():
                parameter -= 1e-4 * (0 if parameter.grad is None else parameter.grad)
        after = model.generator(masked, segments)[0, 2].softmax(-1)[word].item()
        assert (after - before) * sign > 0


@pytest.mark.parametrize(
    ("weights", "learning"),
    [
        ({"generator_weight": 0.0, "discriminator_weight": 0.0}, ("baseline.",)),
        ({"generator_weight": 1.0, "discriminator_weight": 0.0}, ("baseline.", "generator.")),
        ({"generator_weight": 0.0, "discriminator_weight": 50.0}, ("baseline.", "discriminator.")),
    ],
)
def test_each_loss_teaches_its_own_network(weights, learning):
    """The reward carries no gradient to the discriminator, the baseline none to the generator, samples none at all."""
    model = make_model(replace(APART, **weights))
    model(*batch(), keys_of()).loss.backward()
    for name, parameter in model.named_parameters():
        heard = parameter.grad is not None and bool(parameter.grad.any())
        assert heard == name.startswith(learning) or name.endswith("position.weight"), name


def test_the_discriminator_is_electra_s():
    """Given the same samples, its scores are the same."""
    adversarial = make_model(CONFIG)
    electra_model = make_model(replace(CONFIG, kind="electra"))
    electra_model.load_state_dict({k: v for k, v in adversarial.state_dict().items() if not k.startswith("baseline.")})
    ours, theirs = adversarial(*batch(), keys_of()), electra_model(*batch(), keys_of())
    assert torch.equal(ours.replaced, theirs.replaced)
    assert torch.allclose(ours.scores, theirs.scores, atol=1e-6)


def test_the_generator_learns_to_fool_a_discriminator_that_stands_still():
    before, after = learn(make_model(APART), ("generator.", "baseline."), 150, 3e-3)
    assert after["reward"] > before["reward"] + 0.2
    assert after["baseline_loss"] < 0.5 * before["baseline_loss"]


def test_both_learn_at_once():
    """The discriminator finds most samples; the generator, whom nobody told what stood there, guesses it more often."""
    before, after = learn(make_model(CONFIG, spread=0.02), ("",), 250, 1e-3)
    assert after["auc"] > before["auc"] + 0.3
    assert after["generator_loss"] < before["generator_loss"] - 0.1


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"temperature": 0.5}, "--objective.temperature"),
        ({"first_temperature": 2.0}, "--objective.first-temperature"),
        ({"disallow_correct": True}, "--objective.disallow-correct"),
    ],
)
def test_samples_by_other_chances_are_refused(change, flag):
    with pytest.raises(ValueError, match=flag):
        check(replace(CONFIG, **change))


def test_flops_a_token():
    """ELECTRA's, and the generator's head over the vocabulary once more."""
    electra_model, share = make_model(replace(CONFIG, kind="electra")), masked_count(LENGTH, 0.15) / LENGTH
    more = make_model(CONFIG).flops_per_token(LENGTH) - electra_model.flops_per_token(LENGTH)
    assert more == pytest.approx(share * 2 * 16 * (16 + VOCABULARY))
