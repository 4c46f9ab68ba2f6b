"""COCO-LM's crops and losses, token by token and view by view."""

import torch
from torch import Tensor

from reference.hashing import fold, uniform

CROP = 7


def cropped(items: list[int], key: int) -> list[int]:
    """The first, and a piece of the others: nine tenths of all."""
    size = round(0.9 * len(items))
    begin = 1 + int(uniform(fold(key, CROP)) * (len(items) - size + 1))
    return items[:1] + items[begin : begin + size - 1]


def trust_loss(trust: Tensor, is_original: bool) -> Tensor:
    """From the logit of D."""
    chance = trust.sigmoid()
    return -(chance if is_original else 1 - chance).log()


def correction_loss(logits: Tensor, trust: Tensor, given: int, original: int) -> Tensor:
    """-log p(original) with a gate that stands still, of logits [V]."""
    chance = trust.detach().sigmoid()
    return -(chance * (given == original) + (1 - chance) * logits.softmax(0)[original]).log()


def contrast_losses(views: list[Tensor], pairs: list[int], temperature: float) -> tuple[list[Tensor], list[bool]]:
    """Of each view, and whether its pair is the most alike."""
    losses, hits = [], []
    for i, view in enumerate(views):
        others = [j for j in range(len(views)) if j != i]
        cosines = [view @ views[j] / (view.norm() * views[j].norm()) for j in others]
        likeness = torch.stack(cosines) / temperature
        mine = others.index(pairs[i])
        losses.append(likeness.exp().sum().log() - likeness[mine])
        hits.append(int(likeness.argmax()) == mine)
    return losses, hits
