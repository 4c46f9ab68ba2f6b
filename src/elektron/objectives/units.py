"""Masked positions in units: words, or stretches of random length.

A row is cut into units of consecutive tokens. A unit begins where `begins` says so, and no unit reaches across a token
that is no candidate, such as [CLS] and [SEP].

    rank(unit) = the hash of its first place
    positions  = the tokens of whole units in the order of their ranks, until there are K; the last unit is cut

Every row has exactly K positions, whatever its units are. Should it have fewer candidates than that, its other tokens
come after them, each a unit of its own.

Shapes in comments: B rows, T tokens of a row, K masked positions of a row.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.kernels.counters import elements, uniform, unsigned


def stretches(candidates: Tensor, begins: Tensor, count: int, keys: Tensor) -> Tensor:
    """`count` positions of each row in ascending order, [B, K], in units of its candidates [B, T] that begin at
    `begins` [B, T]. The first tokens of the last unit are taken. The keys [B] are the rows' noise."""
    first = _first_places(candidates, begins)
    hashes = unsigned(elements(keys, candidates.shape[1])).gather(1, first)
    ranks = (hashes << 16 | first) + (~candidates).long() * (1 << 50)  # the place makes the ranks of units different
    return ranks.sort(stable=True).indices[:, :count].sort().values  # stable: a unit's tokens stay in their order


def random_begins(candidates: Tensor, mean: float, longest: int, keys: Tensor) -> Tensor:
    """Where units of random length begin, [B, T]: at each token with probability 1 / mean, and where one would have
    more than `longest` tokens. The keys [B] are the rows' noise."""
    length = candidates.shape[1]
    first = _first_places(candidates, uniform(elements(keys, length)) < 1.0 / mean)
    return (torch.arange(length, device=keys.device) - first) % longest == 0


def _first_places(candidates: Tensor, begins: Tensor) -> Tensor:
    """[B, T]: where the unit of each token begins."""
    follows = F.pad(candidates[:, :-1], (1, 0)) & candidates  # another token of the same run of candidates
    places = torch.arange(candidates.shape[1], device=candidates.device)
    return torch.where(begins | ~follows, places, 0).cummax(1).values
