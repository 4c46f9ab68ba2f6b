"""Whether a row was touched at all, told by its [CLS]: a choice beside replaced token detection, which the authors of
ELECTRA tried and gave up (Clark et al., 2020, arXiv 2003.10555). A fifth of the rows is left alone for it.

    loss = mean over rows of  BCE(score of [CLS], the row is corrupted)

Shapes in comments: B rows, T tokens of a row, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elektron.kernels.counters import uniform
from elektron.kernels.masking import Corrupted

TALLIES = ("rows", "sentence_loss", "sentence_hits")
_LEFT_ALONE = 0.2


class SentenceHead(nn.Module):
    """The state of [CLS] to one score: positive where the row looks touched."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, hidden: Tensor, touched: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of losses of states [B, T, D] against labels [B], and the tallies."""
        scores = self.score(hidden[:, 0]).squeeze(-1).float()
        loss = F.binary_cross_entropy_with_logits(scores, touched.float(), reduction="sum")
        counted = [torch.ones_like(touched).sum(), loss.detach(), ((scores > 0) == touched).sum()]
        return loss, torch.stack([count.double() for count in counted])


def spared(original: Tensor, found: Corrupted, keys: Tensor) -> tuple[Corrupted, Tensor]:
    """Some rows as they were, and which are not among them [B]."""
    touched = uniform(keys) >= _LEFT_ALONE
    corrupted = torch.where(touched[:, None], found.corrupted, original)
    return Corrupted(corrupted, found.replaced & touched[:, None]), touched


def sentence_metrics(tallies: dict[str, float]) -> dict[str, float]:
    rows = tallies["rows"]
    return {"sentence_loss": tallies["sentence_loss"] / rows, "sentence_accuracy": tallies["sentence_hits"] / rows}
