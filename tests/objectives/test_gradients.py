"""Gradients of ELECTRA, of masked LM and of the ablations between them: those of the definition, row by row, with whole
logits and torch's own losses."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.objectives.objective import Kind, ObjectiveConfig
from objectives.small import Row, batch, keys_of, make_model, rows_of


def fresh(tokens: list[int]) -> Tensor:
    return torch.tensor([tokens])


def named_losses(network: Any, tokens: list[int], row: Row) -> Tensor:
    """-log p(original) at every token."""
    return F.cross_entropy(network(fresh(tokens), row.segments)[0], torch.tensor(row.original), reduction="none")


def generator_loss(model: Any, rows: list[Row]) -> Tensor:
    return torch.cat([named_losses(model.generator, row.masked, row)[row.positions] for row in rows]).mean()


def detection_losses(model: Any, row: Row) -> Tensor:
    scores = model.discriminator(fresh(row.corrupted), row.segments)[0]
    return F.binary_cross_entropy_with_logits(scores, torch.tensor(row.replaced).float(), reduction="none")


def copied(model: Any, row: Row) -> Tensor:
    trust = model.gate(model.network.encoder(fresh(row.corrupted), row.segments))[0].sigmoid()
    chances = (-named_losses(model.network, row.corrupted, row)).exp()
    same = 1 - torch.tensor(row.replaced).float()
    return -(trust * same + (1 - trust) * chances).log()


def expected(kind: Kind, model: Any, rows: list[Row]) -> Tensor:
    """The loss, from the definition in docs/objectives.md."""
    if kind == "mlm":
        return torch.cat([named_losses(model.network, row.masked, row)[row.positions] for row in rows]).mean()
    gamma, weight = model.config.generator_weight, model.config.discriminator_weight
    first = gamma * generator_loss(model, rows)
    if kind == "electra":
        return first + weight * torch.cat([detection_losses(model, row) for row in rows]).mean()
    if kind == "electra-15":
        return first + weight * torch.cat([detection_losses(model, row)[row.positions] for row in rows]).mean()
    if kind == "replace-mlm":
        losses = [named_losses(model.network, row.corrupted, row)[row.positions] for row in rows]
        return first + torch.cat(losses).mean()
    return first + torch.cat([copied(model, row) for row in rows]).mean()


@pytest.mark.parametrize("kind", ["electra", "electra-15", "mlm", "replace-mlm", "all-tokens-mlm"])
@pytest.mark.parametrize("seed", range(2))
def test_gradients_are_those_of_the_definition(kind, seed):
    config = ObjectiveConfig(kind=kind, mask_rate=0.3, generator_weight=0.7, discriminator_weight=5.0)
    ours, theirs = make_model(config), make_model(config)
    found = ours(*batch(seed), keys_of(seed)).loss
    found.backward()
    rows = rows_of(config, theirs.network if kind == "mlm" else theirs.generator, seed)
    loss = expected(kind, theirs, rows)
    loss.backward()
    assert found.item() == pytest.approx(loss.item(), rel=1e-5)
    for (name, parameter), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert parameter.grad is not None, name
        assert other.grad is not None, name
        assert torch.allclose(parameter.grad, other.grad, atol=1e-5, rtol=1e-3), name
