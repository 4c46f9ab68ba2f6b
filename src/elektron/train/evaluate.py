"""Held-out evaluation: the same rows, masks and samples every time, no dropout."""

from collections.abc import Iterable

import torch
from torch import Tensor

from elektron.data.batches import Batch
from elektron.kernels.counters import row_keys
from elektron.objectives.objective import Objective

NOISE_SEED = 0x5EED
"""Evaluation's own noise: the same in every run, whatever its seed."""


@torch.no_grad()
def evaluate(model: Objective, batches: Iterable[Batch], device: torch.device) -> dict[str, float]:
    """The objective's metrics over the batches, and the area under the ROC curve of whoever detects replaced tokens."""
    was_training = model.training
    model.eval()
    tallies, scores, labels = [], [], []
    for batch in batches:
        original, segments, rows = (tensor.to(device) for tensor in batch)
        outcome = model(original, segments, row_keys(NOISE_SEED, 0, rows))
        tallies.append(outcome.tallies)
        if outcome.scores is not None and outcome.replaced is not None:
            scores.append(outcome.scores.flatten())
            labels.append(outcome.replaced.flatten())
    model.train(was_training)
    totals = torch.stack(tallies).sum(0).tolist()
    metrics = model.summary(dict(zip(model.tallies, totals, strict=True)))
    auc = area_under_curve(torch.cat(scores), torch.cat(labels)) if scores else None
    return metrics if auc is None else metrics | {"detection_auc": auc}


def area_under_curve(scores: Tensor, labels: Tensor) -> float | None:
    """The chance that a replaced token scores above an original one, ties counting half; None if there is no pair."""
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if not positives or not negatives:
        return None
    _, group, sizes = scores.unique(return_inverse=True, return_counts=True)
    ranks = sizes.cumsum(0).double() - (sizes - 1).double() / 2  # the mean rank of each group of equal scores
    return (float(ranks[group][labels].sum()) - positives * (positives + 1) / 2) / (positives * negatives)
