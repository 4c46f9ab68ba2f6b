"""The generator's last step: from features to a loss and a sample over the vocabulary.

For each of N gathered tokens with features f, a table W and a bias b of the vocabulary, and noise g:

    logits = W f + b
    loss   = logsumexp(logits) - logits[target]
    sample = argmax(logits / temperature + g),  g = -log(-log u)            (the Gumbel-max trick)
    hit    = logits[target] = max(logits)

Shapes in comments: N gathered tokens, E embedding width, V vocabulary.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.kernels.counters import elements, gumbel


class Spoken(NamedTuple):
    """What the generator says."""

    losses: Tensor  # [N] float32
    sampled: Tensor  # [N]
    hits: Tensor  # [N] whether the target was the best guess


def speak(
    features: Tensor, table: Tensor, bias: Tensor, targets: Tensor, temperature: float, allowed: bool, keys: Tensor
) -> Spoken:
    """Losses of the targets [N], samples and hits, from features [N, E]. The target itself is never sampled unless
    `allowed`; `keys` [N] are the rows' noise. Only the losses carry a gradient."""
    logits = F.linear(features, table, bias).float()  # [N, V]
    losses = F.cross_entropy(logits, targets, reduction="none")
    logits = logits.detach()
    sampled = sample(logits, temperature, None if allowed else targets, keys)
    hits = logits.gather(1, targets[:, None]).squeeze(1) == logits.amax(1)  # ten times faster than argmax on a CPU
    return Spoken(losses, sampled, hits)


def sample(logits: Tensor, temperature: float, forbidden: Tensor | None, keys: Tensor) -> Tensor:
    """A token for each row of logits [N, V] from softmax(logits / temperature); never the one in `forbidden` [N]."""
    noisy = gumbel(elements(keys, logits.shape[-1])).add_(logits, alpha=1.0 / temperature)
    if forbidden is not None:
        noisy.scatter_(-1, forbidden[:, None], -torch.inf)
    return noisy.argmax(-1)
