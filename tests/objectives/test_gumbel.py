from dataclasses import replace

import pytest
import torch

from elektron.kernels.masking import masked_count
from elektron.objectives.choices import check
from elektron.objectives.gumbel import Gumbel, mixed, softness
from elektron.objectives.objective import ObjectiveConfig
from objectives.small import LENGTH, SPECIALS, VOCABULARY, batch, keys_of, learn, make_model, metrics_of
from reference import gumbel as reference
from reference import proposals

CONFIG = ObjectiveConfig(kind="gumbel", generator_width=0.5)
APART = replace(CONFIG, sharing="none")


def gradients(model: Gumbel, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    return reference.gradients(model, loss, 1.0)


def assert_close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    for name, gradient in theirs.items():
        largest = gradient.abs().max().item()
        assert torch.allclose(ours[name], gradient, rtol=1e-3, atol=1e-4 * largest + 1e-8), name


CONFIGS = {
    "default": CONFIG,
    "apart": replace(APART, keep_rate=0.2, mask_rate=0.3),
    "differences": replace(CONFIG, sharing="gdes"),
    "weights": replace(CONFIG, generator_weight=3.0, discriminator_weight=7.0, gumbel_start=4.0, gumbel_end=0.25),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("progress", [0.0, 0.4, 1.0])
def test_a_pass_is_the_reference(name, progress):
    """Samples, scores, the loss, and the gradient as the sum of three that are taken by themselves."""
    config, seed = CONFIGS[name], 3
    model = make_model(config)
    original, segments = batch(seed)
    outcome = model(original, segments, keys_of(seed), progress)

    positions, rows = proposals.gaps(original, config, SPECIALS, masked_count(LENGTH, config.mask_rate), seed)
    masked, noise = torch.tensor(rows), reference.noise(positions, VOCABULARY, seed)
    best = iter((reference.logits(model, masked, segments, positions) + noise).argmax(-1).tolist())
    sampled = [[next(best) for _ in of_row] for of_row in positions]
    corrupted = torch.tensor(proposals.corrupted(original, positions, sampled))
    assert torch.equal(outcome.replaced, corrupted != original)
    assert torch.allclose(outcome.scores, model.discriminator(corrupted, segments), atol=1e-5)

    likelihood = reference.likelihood_loss(model, original, masked, segments, positions)
    detection = reference.detection_loss(model, original, corrupted, segments)
    warmth = reference.temperature(config.gumbel_start, config.gumbel_end, progress)
    heard = reference.heard_loss(model, original, corrupted, masked, segments, positions, noise, warmth)
    of_text, of_errors = config.generator_weight * (1 - progress), config.generator_weight * progress
    terms = (likelihood, of_text), (detection, config.discriminator_weight), (heard, -of_errors)
    assert outcome.loss.item() == pytest.approx(sum(loss.item() * weight for loss, weight in terms[:2]), rel=1e-5)
    parts = [reference.gradients(model, loss, weight) for loss, weight in terms]
    assert_close(
        gradients(model, outcome.loss), {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}
    )
    assert progress == 0 or parts[2]["generator.head.dense.weight"].abs().max() > 1e-4

    metrics = metrics_of(model, outcome)
    assert metrics["generator_loss"] == pytest.approx(likelihood.item(), rel=1e-5)
    assert metrics["discriminator_loss"] == pytest.approx(detection.item(), rel=1e-5)


def test_the_straight_through_gradient_is_the_analytic_one():
    """Two positions of one row of three tokens, five words: by hand, with the derivative of softmax written out."""
    noise = torch.Generator().manual_seed(0)
    table, logits, slopes = (torch.randn(*shape, generator=noise).double() for shape in ((5, 4), (2, 5), (1, 3, 4)))
    words, positions, warmth, turn = table[[1, 3, 0]][None].clone(), torch.tensor([[0, 2]]), 0.7, 1.9
    for tensor in (table, logits, words):
        tensor.requires_grad_()
    soft = (logits / warmth).softmax(-1)
    vectors = mixed(words, soft, table, positions, turn)
    assert torch.equal(vectors, words)
    (vectors * slopes).sum().backward()

    assert words.grad is not None
    assert logits.grad is not None
    assert table.grad is None
    assert torch.equal(words.grad, slopes)
    for number, position in enumerate((0, 2)):
        p = soft[number].tolist()
        heard = [float(table[word].detach() @ slopes[0, position]) for word in range(5)]  # what each word would cost
        mean = sum(a * b for a, b in zip(p, heard, strict=True))
        expected = [-turn / warmth * p[word] * (heard[word] - mean) for word in range(5)]
        assert logits.grad[number].tolist() == pytest.approx(expected, rel=1e-9)


def test_the_generator_hears_what_it_hears_whatever_the_discriminator_s_weight():
    found = []
    for weight in (1.0, 50.0):
        model = make_model(replace(APART, discriminator_weight=weight))
        found.append(gradients(model, model(*batch(), keys_of(), 1.0).loss))
    one, fifty = found
    assert_close(*({n: g for n, g in of.items() if n.startswith("generator.")} for of in found))
    ratios = {n: (fifty[n].norm() / one[n].norm()).item() for n in one if n.startswith("discriminator.head.")}
    assert all(ratio == pytest.approx(50, rel=1e-3) for ratio in ratios.values())


def test_the_discriminator_learns_as_in_electra():
    """Its gradient has nothing to do with alpha or with the generator's weight; the generator's has."""
    found = []
    for weight, progress in ((1.0, 0.0), (1.0, 1.0), (5.0, 0.5)):
        model = make_model(replace(APART, generator_weight=weight))
        found.append(gradients(model, model(*batch(), keys_of(), progress).loss))
    for other in found[1:]:
        assert_close(*({n: g for n, g in of.items() if n.startswith("discriminator.")} for of in (other, found[0])))
        assert not torch.allclose(other["generator.head.bias"], found[0]["generator.head.bias"], atol=1e-4)


def test_at_first_it_is_electra():
    """With nothing of the discriminator's gradient yet, the same loss for the same samples."""
    gumbel = make_model(CONFIG)
    electra = make_model(replace(CONFIG, kind="electra"))
    electra.load_state_dict(gumbel.state_dict())
    original, segments = batch()
    tallies = [model(original, segments, keys_of(), 0.0).tallies for model in (gumbel, electra)]
    ours, theirs = (dict(zip(gumbel.tallies, of.tolist(), strict=True)) for of in tallies)
    assert ours["generator_loss"] == pytest.approx(theirs["generator_loss"], rel=1e-5)
    assert ours["generator_hits"] == theirs["generator_hits"]


def test_samples_have_the_generator_s_chances():
    """Of one gap, over many keys."""
    row = torch.tensor([[SPECIALS.cls, SPECIALS.sep, 7, SPECIALS.sep]])
    model = make_model(replace(CONFIG, mask_rate=0.3))
    masked, count = row.masked_fill(row == 7, SPECIALS.mask), 4000
    chances = model.generator(masked, torch.zeros_like(row))[0, 2].softmax(-1).detach()
    rows = row.repeat(count, 1)
    with torch.no_grad():
        outcome = model(rows, torch.zeros_like(rows), keys_of(0, count))
    right = 1 - outcome.replaced[:, 2].double().mean().item()
    assert right == pytest.approx(chances[7].item(), abs=0.03)


def test_progress_may_be_a_tensor():
    model = make_model(CONFIG)
    assert softness(CONFIG, 0.0) == 2.0
    assert softness(CONFIG, 1.0) == 0.5
    for progress in (0.0, 0.25, 1.0):
        number = gradients(model, model(*batch(), keys_of(), progress).loss)
        tensor = gradients(model, model(*batch(), keys_of(), torch.tensor(progress)).loss)
        assert_close(tensor, number)


def test_nothing_waits_for_the_device(monkeypatch):
    """A recorded graph has no host to look at a value."""
    model, given = make_model(CONFIG).train(), (*batch(), keys_of(), torch.tensor(0.3))

    def look(*_):
        raise AssertionError("the host looks at a value")

    for name in ("item", "tolist", "nonzero", "__bool__", "__float__", "__int__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, look)
    model(*given).loss.backward()


def test_the_generator_learns_to_fool_a_discriminator_that_stands_still():
    before, after = learn(make_model(APART), ("generator.",), 150, 3e-3, begin=1.0)
    assert after["discriminator_loss"] > before["discriminator_loss"] + 0.05
    assert after["auc"] < before["auc"] - 0.1


def test_both_learn_at_once():
    before, after = learn(make_model(CONFIG, spread=0.02), ("",), 250, 1e-3)
    assert after["auc"] > before["auc"] + 0.2
    assert after["generator_loss"] < before["generator_loss"] - 0.2


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"temperature": 0.5}, "--objective.temperature"),
        ({"disallow_correct": True}, "--objective.disallow-correct"),
        ({"draws": "with-replacement"}, "--objective.draws"),
        ({"discriminator_weight": 0.0}, "--objective.discriminator-weight"),
        ({"gumbel_start": 0.0}, "--objective.gumbel-start"),
        ({"gumbel_end": -1.0}, "--objective.gumbel-end"),
    ],
)
def test_impossible_settings_are_refused(change, flag):
    with pytest.raises(ValueError, match=flag):
        check(replace(CONFIG, **change))


def test_flops_a_token():
    """ELECTRA's, and a product over the vocabulary."""
    electra = make_model(replace(CONFIG, kind="electra"))
    more = make_model(CONFIG).flops_per_token(LENGTH) - electra.flops_per_token(LENGTH)
    assert more == pytest.approx(masked_count(LENGTH, 0.15) / LENGTH * 2 * 16 * VOCABULARY)
