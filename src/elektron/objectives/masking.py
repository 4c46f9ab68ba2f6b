"""Which positions of a row are masked, and putting tokens there.

Shapes in comments: B rows, T tokens of a row, K masked positions of a row.
"""

from typing import Literal

import torch
from torch import Tensor

from elektron.kernels.counters import elements, uniform, unsigned

Draws = Literal["without-replacement", "with-replacement"]


def masked_count(length: int, rate: float) -> int:
    """K: the rate is of the whole row, specials included, as in the original."""
    return max(1, round(rate * length))


def choose(candidates: Tensor, count: int, draws: Draws, keys: Tensor) -> Tensor:
    """`count` positions of each row among its candidates [B, T], in ascending order: [B, K]."""
    if draws == "without-replacement":
        return _distinct(candidates, count, keys)
    return _repeated(candidates, count, keys)


def _distinct(candidates: Tensor, count: int, keys: Tensor) -> Tensor:
    """The candidates with the smallest hashes. A position in the low bits makes every rank different, so that there is
    one answer on every device."""
    length = candidates.shape[1]
    places = torch.arange(length, device=candidates.device)
    ranks = (unsigned(elements(keys, length)) << 16 | places) + (~candidates).long() * (1 << 50)
    return (ranks.topk(count, largest=False, sorted=False).values & 0xFFFF).sort().values


def _repeated(candidates: Tensor, count: int, keys: Tensor) -> Tensor:
    """Independent draws, as Google's code makes them: a position may come twice."""
    numbers = candidates.cumsum(1)  # the n-th candidate is where this first reaches n
    draws = (uniform(elements(keys, count)) * numbers[:, -1:]).long() + 1
    return torch.searchsorted(numbers, draws.sort().values)


def covered(positions: Tensor, where: Tensor, length: int) -> Tensor:
    """[B, T]: the positions for which `where` [B, K] is true, at least once."""
    return positions.new_zeros(len(positions), length).scatter_add_(1, positions, where.long()) > 0


def place(tokens: Tensor, positions: Tensor, values: Tensor) -> Tensor:
    """`tokens` [B, T] with `values` at `positions` [B, K]. A position that was drawn twice gets the mean of its values,
    rounded down, as Google's scatter gives it."""
    sums = torch.zeros_like(tokens).scatter_add_(1, positions, values)
    counts = torch.zeros_like(tokens).scatter_add_(1, positions, torch.ones_like(positions))
    return torch.where(counts > 0, sums // counts.clamp(min=1), tokens)
