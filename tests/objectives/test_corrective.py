from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from elektron.model.heads import Generator
from elektron.objectives.choices import check
from elektron.objectives.corrective import Corrective, contrast, crops
from elektron.objectives.objective import ObjectiveConfig
from objectives.small import (
    LENGTH,
    ROWS,
    SHAPE,
    Row,
    assert_silent,
    batch,
    gradients_of,
    keys_of,
    make_model,
    metrics_of,
    rows_of,
)
from reference import corrective as reference

DEFAULT = ObjectiveConfig(kind="corrective", mask_rate=0.3, generator_width=0.5)
CONFIGS = {
    "default": DEFAULT,
    "cold": replace(DEFAULT, contrast_temperature=0.2, contrast_weight=3.0, temperature=2.0, disallow_correct=True),
    "weights": replace(DEFAULT, generator_weight=0.5, discriminator_weight=7.0, contrast_weight=0.1, keep_rate=0.2),
}


class Expected:
    """A pass over rows, one after the other."""

    def __init__(self, model: Corrective) -> None:
        self.model = model
        self.named: list[torch.Tensor] = []
        self.trusted: list[torch.Tensor] = []
        self.corrected: list[torch.Tensor] = []
        self.views: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        self.scores: list[list[float]] = []
        self.replaced: list[list[bool]] = []

    def add(self, row: Row) -> None:
        model, tokens, corrupted = self.model, row.original, row.corrupted
        assert isinstance(model.generator, Generator)
        logits = model.generator(torch.tensor([row.masked]), row.segments)[0]
        self.named += [-logits[i].log_softmax(0)[tokens[i]] for i in row.positions]
        hidden = model.network.encoder(torch.tensor([corrupted]), row.segments)[0]
        trust = model.gate(hidden)
        self.trusted += [reference.trust_loss(trust[i], corrupted[i] == tokens[i]) for i in range(len(tokens))]
        for i in row.positions:
            words = F.linear(model.network.head(hidden[i]), model.network.table, model.network.head.bias)
            self.corrected.append(reference.correction_loss(words, trust[i], corrupted[i], tokens[i]))
        crop = [torch.tensor([reference.cropped(items, row.key)]) for items in (tokens, row.segments[0].tolist())]
        self.views[0].append(hidden[0])
        self.views[1].append(model.network.encoder(*crop)[0, 0])
        self.scores.append((-trust).tolist())
        self.replaced.append(row.replaced)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(2))
def test_a_pass_is_the_reference(name, seed):
    """Every loss, and the gradients of their sum, from the definitions."""
    config = CONFIGS[name]
    model = make_model(config)
    outcome = model(*batch(seed), keys_of(seed))
    outcome.loss.backward()
    gradients = gradients_of(model)
    model.zero_grad(set_to_none=True)

    expected = Expected(model)
    for row in rows_of(config, model.generator, seed):
        expected.add(row)
    pairs = [*range(ROWS, 2 * ROWS), *range(ROWS)]
    contrasted, hits = reference.contrast_losses(
        [*expected.views[0], *expected.views[1]], pairs, config.contrast_temperature
    )
    losses = [torch.stack(terms).mean() for terms in (expected.named, expected.trusted, expected.corrected, contrasted)]
    weights = config.generator_weight, config.discriminator_weight, 1.0, config.contrast_weight
    loss = torch.stack([weight * term for weight, term in zip(weights, losses, strict=True)]).sum()
    loss.backward()

    assert outcome.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert len(gradients) == len(list(model.parameters()))
    for name, gradient in gradients_of(model).items():
        assert torch.allclose(gradients[name], gradient, rtol=1e-3, atol=1e-4), name
    assert outcome.replaced.tolist() == expected.replaced
    for found, scores in zip(outcome.scores.tolist(), expected.scores, strict=True):
        assert found == pytest.approx(scores, abs=1e-4)
    metrics = metrics_of(model, outcome)
    names = "generator_loss", "discriminator_loss", "encoder_loss", "contrast_loss"
    for name, term in zip(("loss", *names), (loss, *losses), strict=True):
        assert metrics[name] == pytest.approx(term.item(), rel=1e-5), name
    assert metrics["contrast_accuracy"] == pytest.approx(np.mean(hits))
    flagged = outcome.scores > 0
    caught = (flagged & outcome.replaced).sum().item()
    assert metrics["discriminator_recall"] == pytest.approx(caught / max(1, outcome.replaced.sum().item()))
    assert metrics["discriminator_precision"] == pytest.approx(caught / max(1, flagged.sum().item()))
    assert metrics["discriminator_accuracy"] == pytest.approx((flagged == outcome.replaced).double().mean().item())
    assert metrics["replaced_rate"] == pytest.approx(outcome.replaced.double().mean().item())


def test_gradients_go_where_they_may():
    """Correcting does not teach the gate, nobody but itself the generator, and samples carry nothing."""
    assert_silent(make_model(replace(DEFAULT, discriminator_weight=0.0)), "gate.")
    assert_silent(make_model(replace(DEFAULT, discriminator_weight=0.0, contrast_weight=0.0)), "gate.")
    assert_silent(make_model(replace(DEFAULT, generator_weight=0.0)), "generator.")


def test_a_crop_is_the_first_token_and_a_piece():
    """All places where it may begin come up, and alike."""
    found = crops(40, keys_of(rows=5000))
    assert found.shape == (5000, 36)
    assert (found[:, 0] == 0).all()
    assert (found[:, 1:].diff(dim=1) == 1).all()
    counts = np.bincount(found[:, 1].numpy())
    assert counts[0] == 0
    assert len(counts) == 6  # 1 to 5: the last piece ends with the row
    assert counts[1:].min() > 900
    for length in range(1, 40):
        assert crops(length, keys_of()).max() < length


def test_likeness_is_among_the_rows_that_come_together():
    """One row alone is told from nobody; rows that are all alike are told by chance."""
    states = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert contrast(states[:1], -states[:1], 1.0).loss.item() == 0.0
    same = states[:1].expand(5, 8)
    assert contrast(same, 3 * same, 0.5).loss.item() == pytest.approx(10 * np.log(9), rel=1e-5)
    told = contrast(states, 2 * states, 0.01)
    assert told.loss.item() == pytest.approx(0.0, abs=1e-3)
    assert told.tallies.tolist() == pytest.approx([10, told.loss.item(), 10])


def test_dropout_is_for_training_and_only_the_contrast_hears_of_other_rows():
    model = make_model(DEFAULT, replace(SHAPE, dropout=0.2, attention_dropout=0.2)).train()
    (original, segments), keys = batch(), keys_of()
    whole = model(original, segments, keys)
    halves = [model(original[i : i + 2], segments[i : i + 2], keys[i : i + 2]) for i in (0, 2)]
    assert torch.allclose(whole.scores, torch.cat([half.scores for half in halves]), atol=1e-5)
    together = dict(zip(model.tallies, whole.tallies.tolist(), strict=True))
    apart = dict(zip(model.tallies, torch.stack([half.tallies for half in halves]).sum(0).tolist(), strict=True))
    differing = {name for name in model.tallies if together[name] != pytest.approx(apart[name])}
    assert "contrast_loss" in differing
    assert differing <= {"contrast_loss", "contrast_hits"}
    model.eval()
    assert not torch.allclose(whole.scores, model(original, segments, keys).scores, atol=1e-3)


def test_flops_are_those_of_the_products():
    """As torch counts them, in a pass and back, but for the likeness of rows."""
    model = make_model(DEFAULT, replace(SHAPE, dropout=0.1, attention_dropout=0.1)).train()
    with FlopCounterMode(display=False) as counter:
        model(*batch(), keys_of()).loss.backward()
    assert counter.get_total_flops() == pytest.approx(ROWS * LENGTH * model.flops_per_token(LENGTH), rel=0.01)


def test_both_networks_come_out():
    model = make_model(DEFAULT)
    assert isinstance(model, Corrective)
    assert model.networks() == {"encoder": model.network, "generator": model.generator}
    assert model.encoder is model.network.encoder


@pytest.mark.parametrize(
    "change",
    [{"generator": name} for name in ("two-tower", "uniform", "unigram", "tied")]
    + [{"generator": "frozen", "sharing": "none"}, {"sharing": "gdes"}],
)
def test_any_generator_will_do(change):
    """The encoder learns beside each."""
    model = make_model(replace(DEFAULT, **change))
    outcome = model(*batch(), keys_of())
    outcome.loss.backward()
    metrics = metrics_of(model, outcome)
    assert outcome.loss.item() == pytest.approx(metrics["loss"], rel=1e-5)
    assert model.network.encoder.embeddings.word.weight.grad is not None
    assert model.flops_per_token(LENGTH) > 0
    assert "encoder" in model.networks()


@pytest.mark.parametrize("change", [{"equal": "replaced"}, {"sentence_weight": 1.0}])
def test_what_it_cannot_do_is_refused(change):
    (name,) = change
    with pytest.raises(ValueError, match=f"--objective.{name.replace('_', '-')}"):
        check(replace(DEFAULT, **change))


def test_impossible_contrast_is_refused():
    with pytest.raises(ValueError, match="--objective.contrast-temperature must be positive"):
        ObjectiveConfig(contrast_temperature=0.0)
