"""Heads for tasks: what is learned on top of an encoder. Those called 'transformers' open in its classes, those called
'original' are the ones of the paper's code (Clark et al., 2020, arXiv 2003.10555).

                    transformers                                     original
    classification  of [CLS]: dropout, dense, GELU, dropout, score   dropout, score
    tagging         of each token: dropout, score                    score
    span            of each token: scores of start and end           `JointHead`

Shapes in comments: B rows, T tokens of a row, D width, C classes, K starts that are followed up.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elektron.kernels.counters import dropout, fold
from elektron.kernels.products import gelu_linear, linear
from elektron.model.encoder import Encoder
from elektron.model.initial import DEVIATION

Kind = Literal["classification", "regression", "tagging", "span"]
Style = Literal["transformers", "original"]
SITE = 1 << 20
"""Of the heads' dropout, beyond those of any encoder."""
_JOINT_WIDTH = 512
_FOLLOWED = 20
"""Starts of an answer that are followed up, and ends for each."""
_FORBIDDEN = -1000.0


class Head(nn.Module):
    """Scores of [CLS], or of every token."""

    def __init__(self, width: int, scores: int, rate: float, of_tokens: bool, is_deep: bool) -> None:
        super().__init__()
        self._rate = rate
        self.of_tokens = of_tokens
        self.dense = nn.Linear(width, width) if is_deep else None
        self.score = nn.Linear(width, scores)

    def forward(self, hidden: Tensor, keys: Tensor | None) -> Tensor:
        """[B, T, D] -> [B, C] or [B, T, C]; `keys` [B] are the rows' noise, None when nothing is to be dropped."""
        x = hidden if self.of_tokens else hidden[:, 0]
        x = dropout(x, self._rate, None if keys is None else fold(keys, SITE))
        if self.dense is not None:
            x = gelu_linear(x, self.dense.weight, self.dense.bias)
            x = dropout(x, self._rate, None if keys is None else fold(keys, SITE + 1))
        return linear(x, self.score.weight, self.score.bias)


class JointHead(nn.Module):
    """The end of an answer is found knowing its start; whether there is one, knowing [CLS] and where it would start."""

    of_tokens = False

    def __init__(self, width: int) -> None:
        super().__init__()
        self.start = nn.Linear(width, 1)
        self.end_dense = nn.Linear(2 * width, _JOINT_WIDTH)
        self.end = nn.Linear(_JOINT_WIDTH, 1)
        self.doubt_dense = nn.Linear(2 * width, _JOINT_WIDTH)
        self.doubt = nn.Linear(_JOINT_WIDTH, 1)

    def starts(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """[B, T, D] -> [B, T]"""
        return self._where(linear(hidden, self.start.weight, self.start.bias), allowed)

    def ends(self, hidden: Tensor, start: Tensor, allowed: Tensor) -> Tensor:
        """[B, T, D] and a start for each row [B] -> [B, T]"""
        chosen = hidden[torch.arange(len(hidden), device=hidden.device), start]
        pairs = torch.cat([chosen[:, None].expand_as(hidden), hidden], -1)
        features = gelu_linear(pairs, self.end_dense.weight, self.end_dense.bias)
        return self._where(linear(features, self.end.weight, self.end.bias), allowed)

    def doubts(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """[B] the logit of there being no answer; `starts` are the scores."""
        meant = (starts.softmax(-1).to(hidden.dtype)[..., None] * hidden).sum(1)
        features = gelu_linear(torch.cat([hidden[:, 0], meant], -1), self.doubt_dense.weight, self.doubt_dense.bias)
        return linear(features, self.doubt.weight, self.doubt.bias).float().squeeze(-1)

    def forward(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """[B, 1 + K * K, 3]: first the doubt, with places 0 and 0; then spans, as start, end, and the sum of the
        logarithms of both probabilities."""
        scores = self.starts(hidden, allowed)
        count = min(_FOLLOWED, hidden.shape[1])
        likely = scores.log_softmax(-1).topk(count)
        doubts = self.doubts(hidden, scores)
        found = [F.pad(doubts[:, None], (2, 0))[:, None]]  # [B, 1, 3]
        for start, chance in zip(likely.indices.unbind(1), likely.values.unbind(1), strict=True):
            ends = self.ends(hidden, start, allowed).log_softmax(-1).topk(count)
            starts = start[:, None].expand_as(ends.indices).float()
            found.append(torch.stack([starts, ends.indices.float(), chance[:, None] + ends.values], -1))
        return torch.cat(found, 1)

    @staticmethod
    def _where(scores: Tensor, allowed: Tensor) -> Tensor:
        return torch.where(allowed, scores.float().squeeze(-1), _FORBIDDEN)


def answerable(segments: Tensor, mask: Tensor) -> Tensor:
    """[B, T] where an answer may be: in the second segment, and at [CLS] where there is none."""
    allowed = (segments == 1) & mask
    allowed[:, 0] = True
    return allowed


def head_of(kind: Kind, style: Style, width: int, scores: int, rate: float) -> Head | JointHead:
    if kind == "span" and style == "original":
        return JointHead(width)
    if kind in ("classification", "regression"):
        return Head(width, scores, rate, of_tokens=False, is_deep=style == "transformers")
    is_dropped = kind == "tagging" and style == "transformers"
    return Head(width, scores, rate if is_dropped else 0.0, of_tokens=True, is_deep=False)


class Tuned(nn.Module):
    """An encoder with a head for a task."""

    def __init__(self, encoder: Encoder, kind: Kind, style: Style, labels: tuple[str, ...]) -> None:
        super().__init__()
        self.kind: Kind = kind
        self.style: Style = style
        self.labels = labels
        """Names of the scores."""
        self.encoder = encoder
        self.head = head_of(kind, style, encoder.config.width, len(labels), encoder.config.dropout)

    def forward(
        self, tokens: Tensor, segments: Tensor, mask: Tensor | None = None, keys: Tensor | None = None
    ) -> Tensor:
        """[B, T] -> [B, C] or [B, T, C]; or what a `JointHead` says."""
        hidden = self.encoder(tokens, segments, mask, keys)
        if isinstance(self.head, JointHead):
            return self.head(hidden, answerable(segments, torch.ones_like(segments) > 0 if mask is None else mask))
        return self.head(hidden, keys)


@torch.no_grad()
def begin_head(head: Head | JointHead, style: Style, seed: int) -> None:
    """First values: the way of transformers, or of the original (Glorot)."""
    noise = torch.Generator().manual_seed(seed)
    for name, parameter in head.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif style == "original":
            nn.init.xavier_uniform_(parameter, generator=noise)
        else:
            nn.init.normal_(parameter, 0.0, DEVIATION, generator=noise)


def depth_of(name: str, layers: int) -> int:
    """How deep a parameter of `Tuned` lies: 0 in the embeddings and their projection, 1 to `layers` in the layers, one
    more in the head."""
    room, *rest = name.split(".")
    if room == "head":
        return layers + 1
    return int(rest[1]) + 1 if rest[0] == "layers" else 0
