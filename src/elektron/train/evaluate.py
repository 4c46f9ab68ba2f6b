"""Held-out evaluation: the same rows, masks and samples every time, no dropout."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from elektron.data.batches import Batch
from elektron.kernels.counters import row_keys
from elektron.objectives.objective import Objective, Outcome
from elektron.tasks.metrics import area_under_curve

NOISE_SEED = 0x5EED
"""Evaluation's own noise: the same in every run, whatever its seed."""


class Pass(NamedTuple):
    """Rows that were evaluated on."""

    original: Tensor  # [B, T]
    segments: Tensor  # [B, T]
    keys: Tensor  # [B] their noise
    outcome: Outcome


@torch.no_grad()
def passes(model: Objective, batches: Iterable[Batch], device: torch.device) -> Iterator[Pass]:
    """What the objective makes of batch after batch."""
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            original, segments, rows = (tensor.to(device) for tensor in batch)
            keys = row_keys(NOISE_SEED, 0, rows)
            yield Pass(original, segments, keys, model(original, segments, keys))
    finally:
        model.train(was_training)


@torch.no_grad()
def evaluate(model: Objective, batches: Iterable[Batch], device: torch.device) -> dict[str, float]:
    """The objective's metrics over the batches, and the area under the ROC curve of whoever detects replaced tokens."""
    tallies, scores, labels = [], [], []
    for _, _, _, outcome in passes(model, batches, device):
        tallies.append(outcome.tallies)
        if outcome.scores is not None and outcome.replaced is not None:
            scores.append(outcome.scores.flatten())
            labels.append(outcome.replaced.flatten())
    totals = torch.stack(tallies).sum(0).tolist()
    metrics = model.summary(dict(zip(model.tallies, totals, strict=True)))
    auc = area_under_curve(torch.cat(scores).float().cpu(), torch.cat(labels).cpu()) if scores else None
    return metrics if auc is None else metrics | {"detection_auc": auc}
