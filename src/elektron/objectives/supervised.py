"""The losses of tasks: means over a batch, or sums, of what the head says against what was to be said.

classification  cross-entropy of [CLS]'s scores
regression      squared error of [CLS]'s one score
tagging         cross-entropy of the tokens that have a class
span            half the cross-entropy of the first token and half that of the last, over all places of the row
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.data.examples import IGNORED, Inputs
from elektron.model.task_heads import JointHead, Kind, Tuned, answerable

Reduction = Literal["mean", "sum"]


class Outcome(NamedTuple):
    """What a batch taught."""

    loss: Tensor
    tallies: Tensor  # [1] the loss


def learn(network: Tuned, inputs: Inputs, keys: Tensor | None, reduction: Reduction = "mean") -> Outcome:
    if isinstance(network.head, JointHead):
        hidden = network.encoder(inputs.tokens, inputs.segments, inputs.mask, keys)
        loss = joint_loss(network.head, hidden, answerable(inputs.segments, inputs.mask), inputs.targets, reduction)
    else:
        scores = network(inputs.tokens, inputs.segments, inputs.mask, keys)
        loss = loss_of(network.kind, scores.float(), inputs.targets, reduction)
    return Outcome(loss, loss.detach().double()[None])


def joint_loss(
    head: JointHead, hidden: Tensor, allowed: Tensor, targets: Tensor, reduction: Reduction = "mean"
) -> Tensor:
    """Targets [B, 2], both 0 where the row has no answer."""
    first, last = targets.unbind(1)
    starts = head.starts(hidden, allowed)
    ends = head.ends(hidden, first, allowed)
    doubt = F.binary_cross_entropy_with_logits(head.doubts(hidden, starts), (first == 0).float(), reduction=reduction)
    found = F.cross_entropy(starts, first, reduction=reduction) + F.cross_entropy(ends, last, reduction=reduction)
    return (found + doubt) / 2


def loss_of(kind: Kind, scores: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Scores [B, C] or [B, T, C]; targets as `Inputs` has them."""
    if kind == "regression":
        return F.mse_loss(scores.squeeze(-1), targets.float(), reduction=reduction)
    if kind == "span":
        pairs = zip(scores.unbind(-1), targets.unbind(1), strict=True)
        return torch.stack([F.cross_entropy(*pair, reduction=reduction) for pair in pairs]).sum() / 2
    return F.cross_entropy(scores.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction=reduction)
