"""Drawing the generator's tokens."""

import torch
from torch import Tensor

from elektron.kernels.counters import elements, gumbel


def sample(logits: Tensor, temperature: float, forbidden: Tensor | None, keys: Tensor) -> Tensor:
    """One token for each row of logits [..., V] from softmax(logits / temperature), by the Gumbel-max trick; never the
    one in `forbidden` [...], if given. `keys` [...] are the noise."""
    noisy = gumbel(elements(keys, logits.shape[-1])).add_(logits, alpha=1.0 / temperature)
    if forbidden is not None:
        noisy.scatter_(-1, forbidden[..., None], -torch.inf)
    return noisy.argmax(-1)
