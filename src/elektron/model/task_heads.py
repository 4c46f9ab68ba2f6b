"""Heads for tasks: what is learned on top of an encoder. Those called 'transformers' open in its classes, those called
'original' are the ones of the paper's code (Clark et al., 2020, arXiv 2003.10555).

                    transformers                                     original
    classification  of [CLS]: dropout, dense, GELU, dropout, score   dropout, score
    tagging         of each token: dropout, score                    score

Shapes in comments: B rows, T tokens of a row, D width, C classes.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from elektron.kernels.counters import dropout, fold
from elektron.kernels.products import gelu_linear, linear
from elektron.model.encoder import Encoder
from elektron.model.initial import DEVIATION

Kind = Literal["classification", "regression", "tagging", "span"]
Style = Literal["transformers", "original"]
_SITE = 1 << 20
"""Of the heads' dropout, beyond those of any encoder."""


class Head(nn.Module):
    """Scores of [CLS], or of every token."""

    def __init__(self, width: int, scores: int, rate: float, of_tokens: bool, is_deep: bool) -> None:
        super().__init__()
        self._rate, self._of_tokens = rate, of_tokens
        self.dense = nn.Linear(width, width) if is_deep else None
        self.score = nn.Linear(width, scores)

    def forward(self, hidden: Tensor, keys: Tensor | None) -> Tensor:
        """[B, T, D] -> [B, C] or [B, T, C]; `keys` [B] are the rows' noise, None when nothing is to be dropped."""
        x = hidden if self._of_tokens else hidden[:, 0]
        x = dropout(x, self._rate, None if keys is None else fold(keys, _SITE))
        if self.dense is not None:
            x = gelu_linear(x, self.dense.weight, self.dense.bias)
            x = dropout(x, self._rate, None if keys is None else fold(keys, _SITE + 1))
        return linear(x, self.score.weight, self.score.bias)


def head_of(kind: Kind, style: Style, width: int, scores: int, rate: float) -> Head:
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
        """[B, T] -> [B, C] or [B, T, C]"""
        return self.head(self.encoder(tokens, segments, mask, keys), keys)


@torch.no_grad()
def begin_head(head: Head, style: Style, seed: int) -> None:
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
