"""Straight-through Gumbel-softmax and the gradients of its three losses, each by itself."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from elektron.objectives.gumbel import Gumbel
from reference import hashing, proposals

Gradients = dict[str, Tensor]


def noise(positions: list[list[int]], words: int, seed: int) -> Tensor:
    """[N, V]"""
    return torch.tensor(
        [
            [-math.log(-math.log(hashing.uniform(hashing.fold(key, word)))) for word in range(words)]
            for row, of_row in enumerate(positions)
            for key in [proposals.sample_key(seed, row, number) for number in range(len(of_row))]
        ]
    )


def temperature(start: float, end: float, progress: float) -> float:
    return math.exp((1 - progress) * math.log(start) + progress * math.log(end))


def logits(model: Gumbel, masked: Tensor, segments: Tensor, positions: list[list[int]]) -> Tensor:
    """[N, V]"""
    everywhere = model.generator(masked, segments)
    return torch.stack([everywhere[row, place] for row, of_row in enumerate(positions) for place in of_row])


def likelihood_loss(
    model: Gumbel, original: Tensor, masked: Tensor, segments: Tensor, positions: list[list[int]]
) -> Tensor:
    targets = torch.tensor([original[row, place] for row, of_row in enumerate(positions) for place in of_row])
    return F.cross_entropy(logits(model, masked, segments, positions), targets)


def detection_loss(model: Gumbel, original: Tensor, corrupted: Tensor, segments: Tensor) -> Tensor:
    """ELECTRA's, of tokens."""
    return F.binary_cross_entropy_with_logits(model.discriminator(corrupted, segments), (corrupted != original).float())


def heard_loss(
    model: Gumbel,
    original: Tensor,
    corrupted: Tensor,
    masked: Tensor,
    segments: Tensor,
    positions: list[list[int]],
    noise: Tensor,
    warmth: float,
) -> Tensor:
    """The discriminator's errors a masked token, as a function of the soft samples and of nothing else: whatever the
    discriminator consists of is a constant."""
    fixed = {name: parameter.detach() for name, parameter in model.discriminator.named_parameters()}
    table = model.discriminator.encoder.embeddings.table.detach()
    soft = ((logits(model, masked, segments, positions) + noise) / warmth).softmax(-1)
    hard = F.one_hot(soft.argmax(-1), soft.shape[-1])
    weights = hard + soft - soft.detach()  # [N, V]
    vectors = [list(table[row]) for row in corrupted]
    places = [(row, place) for row, of_row in enumerate(positions) for place in of_row]
    for (row, place), of_words in zip(places, weights, strict=True):
        vectors[row][place] = of_words @ table
    mixture = torch.stack([torch.stack(row) for row in vectors])
    scores = functional_call(model.discriminator, fixed, (mixture, segments))
    errors = F.binary_cross_entropy_with_logits(scores, (corrupted != original).float(), reduction="sum")
    return errors / len(places)


def gradients(model: nn.Module, loss: Tensor, weight: float) -> Gradients:
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    zeros = (torch.zeros_like(parameter) for parameter in parameters)
    return {n: zero if g is None else weight * g for n, g, zero in zip(names, found, zeros, strict=True)}
