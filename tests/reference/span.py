"""Filling stretches of one row, one token at a time."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.model.heads import Generator

POSITIONS, SAMPLE, UNITS = 0, 2, 6


def stretches(positions: list[int], longest: int) -> list[list[int]]:
    """Maximal runs of consecutive positions, cut every `longest`."""
    found: list[list[int]] = []
    for position in positions:
        if not found or found[-1][-1] != position - 1 or len(found[-1]) == longest:
            found.append([])
        found[-1].append(position)
    return found


def next_logits(
    generator: Generator, masked: list[int], segments: list[int], stretch: list[int], before: list[int], mask: int
) -> Tensor:
    """[V] for the token of a stretch that comes after the tokens `before`: from the masked row, followed by nothing but
    the stretch so far, each token in the place of the next."""
    here = stretch[: len(before) + 1]
    tokens = [*masked, mask, *before]
    view = [[j < len(masked) or len(masked) <= j <= i for j in range(len(tokens))] for i in range(len(tokens))]
    hidden = generator.encoder(
        torch.tensor([tokens]),
        torch.tensor([segments + [segments[place] for place in here]]),
        torch.tensor([view]),
        places=torch.tensor([[*range(len(masked)), *here]]),
    )
    return F.linear(generator.head(hidden[0, -1]), generator.table, generator.head.bias)


def samples(
    stretch: list[int], logits_after: Callable[[list[int]], Tensor], draw: Callable[[Tensor, int], int]
) -> list[int]:
    """The tokens of a stretch, each drawn after those before it."""
    found: list[int] = []
    for position in stretch:
        found.append(draw(logits_after(found), position))
    return found
