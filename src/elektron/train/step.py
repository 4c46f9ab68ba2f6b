"""One update: micro-batches forward and backward, then clip and step."""

from collections.abc import Callable

import torch
from torch import Tensor

from elektron.data.batches import Batch
from elektron.kernels.counters import row_keys
from elektron.objectives.electra import Outcome
from elektron.train.device import precision
from elektron.train.optimizer import Optimizer


def update(
    forward: Callable[[Tensor, Tensor, Tensor], Outcome],
    optimizer: Optimizer,
    batch: Batch,
    seed: int,
    step: Tensor,
    accumulate: int,
    learning_rate: float,
) -> dict[str, Tensor]:
    """Learn from a batch, in `accumulate` parts of equal size; the tallies of the whole batch come back, on the device.

    The parts have the same number of masked and of all tokens each, so the mean of their losses is the batch's loss.
    """
    optimizer.zero()
    tallies: dict[str, Tensor] = {}
    for part in zip(*(tensor.chunk(accumulate) for tensor in batch), strict=True):
        original, segments, rows = part
        with precision(original.device):
            outcome = forward(original, segments, row_keys(seed, step, rows))
        (outcome.loss / accumulate).backward()
        for name, value in outcome.tallies.items():
            tallies[name] = tallies.get(name, torch.zeros_like(value)) + value
    tallies["gradient_norm"] = optimizer.update(learning_rate).double()
    return tallies
