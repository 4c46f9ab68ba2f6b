"""Which tokens of a row are hidden: always exactly K, and [CLS] and [SEP] only if there are too few others.

    uniform      any, alike (kernels/masking.py)
    whole-word   words with all their tokens, in the order of their hashes; the last is cut
    span         stretches of random lengths, likewise
    frequency    token by token, with chances that fall with its frequency: the K first of exponential races

Shapes in comments: B rows, T tokens of a row, K masked positions of a row.
"""

import torch
from torch import Tensor

from elektron.kernels.counters import elements, uniform
from elektron.kernels.masking import Masked, covered, mask, masked_count
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Noise, ObjectiveConfig
from elektron.objectives.units import random_begins, stretches


def hide(config: ObjectiveConfig, lexicon: Lexicon, original: Tensor, noise: Noise) -> Masked:
    """Rows [B, T] with [MASK] at the positions that were chosen."""
    specials, count = lexicon.specials, masked_count(original.shape[1], config.mask_rate)
    if config.masking == "uniform":
        return mask(
            *(original, specials.cls, specials.sep, specials.mask, count, config.draws, config.keep_rate),
            *(noise.positions, noise.keeps),
        )
    positions = chosen(config, lexicon, original, count, noise)
    hides = uniform(elements(noise.keeps, count)) >= config.keep_rate
    masked = original.masked_fill(covered(positions, hides, original.shape[1]), specials.mask)
    return Masked(positions, original.gather(1, positions), masked)


def chosen(config: ObjectiveConfig, lexicon: Lexicon, original: Tensor, count: int, noise: Noise) -> Tensor:
    """[B, K] positions in ascending order."""
    candidates = (original != lexicon.specials.cls) & (original != lexicon.specials.sep)
    if config.masking == "frequency":
        return _rare(candidates, lexicon.frequencies[original], config.rarity, count, noise.positions)
    if config.masking == "whole-word":
        return stretches(candidates, ~lexicon.continues[original], count, noise.positions)
    begins = random_begins(candidates, config.span_mean, config.span_longest, noise.units)
    return stretches(candidates, begins, count, noise.positions)


def _rare(candidates: Tensor, frequencies: Tensor, rarity: float, count: int, keys: Tensor) -> Tensor:
    """Sampling without replacement by weights: the first of independent exponential times with these rates."""
    times = -uniform(elements(keys, candidates.shape[1])).log() * frequencies.pow(rarity)
    times = torch.where(candidates, times, times + 1e6)
    return times.topk(count, largest=False, sorted=False).indices.sort().values
