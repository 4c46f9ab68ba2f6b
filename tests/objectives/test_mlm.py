"""Masked language modelling and the two ablations between it and ELECTRA."""

import math

import pytest
import torch

from elektron.objectives.all_tokens_mlm import copied_losses
from elektron.objectives.objective import ObjectiveConfig
from objectives.small import LENGTH, ROWS, assert_silent, batch, keys_of, make_model, mean, metrics_of, rows_of
from reference import electra as reference


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("keep_rate", [0.0, 0.3])
def test_mlm_is_the_reference(seed, keep_rate):
    config = ObjectiveConfig(kind="mlm", mask_rate=0.3, keep_rate=keep_rate)
    model = make_model(config)
    outcome = model(*batch(seed), keys_of(seed))
    rows = rows_of(config, model.network, seed)
    losses = [loss for row in rows for loss in row.generator_losses]
    assert outcome.loss.item() == pytest.approx(mean(losses), rel=1e-5)
    found = metrics_of(model, outcome)
    assert found["loss"] == found["encoder_loss"] == pytest.approx(mean(losses), rel=1e-5)
    assert 0 <= found["encoder_accuracy"] <= 1
    assert outcome.scores is None


@pytest.mark.parametrize("seed", range(2))
def test_replace_mlm_is_the_reference(seed):
    config = ObjectiveConfig(kind="replace-mlm", mask_rate=0.3, generator_weight=0.7)
    model = make_model(config)
    outcome = model(*batch(seed), keys_of(seed))
    small, large = [], []
    for row in rows_of(config, model.generator, seed):
        logits = model.network(torch.tensor([row.corrupted]), row.segments)[0].tolist()
        small += row.generator_losses
        large += [reference.cross_entropy(logits[i], row.original[i]) for i in row.positions]
    assert outcome.loss.item() == pytest.approx(0.7 * mean(small) + mean(large), rel=1e-5)
    found = metrics_of(model, outcome)
    assert found["encoder_loss"] == pytest.approx(mean(large), rel=1e-5)
    assert found["generator_loss"] == pytest.approx(mean(small), rel=1e-5)
    assert found["loss"] == pytest.approx(outcome.loss.item(), rel=1e-5)


@pytest.mark.parametrize("seed", range(2))
def test_all_tokens_mlm_is_the_reference(seed):
    """p = D * onehot(input) + (1 - D) * softmax, from the numbers themselves."""
    config = ObjectiveConfig(kind="all-tokens-mlm", mask_rate=0.3)
    model = make_model(config)
    outcome = model(*batch(seed), keys_of(seed))
    small, large, replaced = [], [], []
    for row in rows_of(config, model.generator, seed):
        tokens = torch.tensor([row.corrupted])
        logits = model.network(tokens, row.segments)[0].tolist()
        trust = model.gate(model.network.encoder(tokens, row.segments))[0].tolist()
        small += row.generator_losses
        for i, (token, given) in enumerate(zip(row.original, row.corrupted, strict=True)):
            share = 1 / (1 + math.exp(-trust[i]))
            chance = math.exp(-reference.cross_entropy(logits[i], token))
            large.append(-math.log(share * (token == given) + (1 - share) * chance))
            replaced.append(token != given)
    assert outcome.loss.item() == pytest.approx(mean(small) + mean(large), rel=1e-5)
    found = metrics_of(model, outcome)
    assert found["encoder_loss"] == pytest.approx(mean(large), rel=1e-5)
    assert found["replaced_rate"] == pytest.approx(mean(replaced))
    assert outcome.replaced.flatten().tolist() == replaced
    assert outcome.scores.shape == (ROWS, LENGTH)


def test_the_gate_s_gradient_is_that_of_the_numbers():
    trust = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    losses = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).mul(5).requires_grad_()
    replaced = torch.arange(50) % 3 == 0
    share = trust.sigmoid()
    plain = -(share * ~replaced + (1 - share) * (-losses).exp()).log()
    expected = torch.autograd.grad(plain.sum(), (trust, losses))
    found = torch.autograd.grad(copied_losses(trust, losses, replaced).sum(), (trust, losses))
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("kind", ["replace-mlm", "all-tokens-mlm"])
def test_the_encoder_teaches_the_generator_nothing(kind):
    assert_silent(make_model(ObjectiveConfig(kind=kind, generator_weight=0.0)), "generator.")


def test_what_comes_out():
    assert list(make_model(ObjectiveConfig(kind="mlm")).networks()) == ["encoder"]
    for kind in ("replace-mlm", "all-tokens-mlm"):
        assert list(make_model(ObjectiveConfig(kind=kind)).networks()) == ["encoder", "generator"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("mlm", lambda large, small, head, tiny: large + 0.15 * head),
     ("replace-mlm", lambda large, small, head, tiny: large + small + 0.15 * (head + tiny)),
     ("all-tokens-mlm", lambda large, small, head, tiny: large + small + head + 2 * 32 + 0.15 * tiny)],
)  # fmt: skip
def test_flops_a_token(kind, expected):
    """From the shapes: width 32, embedding 16, 40 words, two layers; a generator of 8, with one head."""

    def encoder(width: int, feedforward: int) -> float:
        return 2 * 16 * width + 2 * (2 * (4 * width**2 + 2 * width * feedforward) + 4 * LENGTH * width)

    model = make_model(ObjectiveConfig(kind=kind))
    parts = encoder(32, 64), encoder(8, 16), 2 * 16 * (32 + 40), 2 * 16 * (8 + 40)
    assert model.flops_per_token(LENGTH) == pytest.approx(3 * expected(*parts))
