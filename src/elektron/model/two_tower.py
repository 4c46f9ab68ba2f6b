"""A cloze model without [MASK] (Clark et al., 2020, arXiv 2012.08561, section 2.3): one causal encoder reads the row
from left to right, another from right to left, and a token is named from what the first says just before it and the
second just after it. So every token of a row is named in one pass, each from all others and none from itself.

Shapes in comments: B rows, T tokens of a row, D width of a tower, E embedding width, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elektron.kernels.counters import fold
from elektron.model.encoder import Embeddings, Encoder, EncoderConfig
from elektron.model.heads import GeneratorHead

_OF_LEFT, _OF_RIGHT = range(2)


class TwoTower(nn.Module):
    """Proposes tokens: the noise that Electric is contrasted with."""

    def __init__(self, config: EncoderConfig, embeddings: Embeddings) -> None:
        super().__init__()
        self.left = Encoder(config, embeddings)
        self.right = Encoder(config, embeddings)
        self.head = GeneratorHead(2 * config.width, embeddings)

    @property
    def table(self) -> Tensor:
        """[V, E] what features are compared with: the embeddings of the vocabulary."""
        return self.left.embeddings.table

    def states(
        self, tokens: Tensor, segments: Tensor, keys: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """What is known of each token from the others: [B, T] -> [B, T, 2D], zeros where there is nothing to that side.
        `keys` [B] are the rows' noise, None when nothing is to be dropped; `attention_mask` [B, T] is 1 where a token
        is to be seen, None when all are."""
        length = tokens.shape[1]
        seen = torch.ones(1, length, length, dtype=torch.bool, device=tokens.device).tril()  # [query, key]
        to_left, to_right = seen, seen.mT
        if attention_mask is not None:
            to_left, to_right = (view & attention_mask.bool()[:, None] for view in (to_left, to_right))
        of_left, of_right = (None, None) if keys is None else (fold(keys, _OF_LEFT), fold(keys, _OF_RIGHT))
        left = self.left(tokens, segments, to_left, of_left)  # [B, T, D]
        right = self.right(tokens, segments, to_right, of_right)
        if attention_mask is not None:  # a hidden token says nothing of itself either
            left, right = (tower * attention_mask[..., None].to(tower.dtype) for tower in (left, right))
        before, after = F.pad(left[:, :-1], (0, 0, 1, 0)), F.pad(right[:, 1:], (0, 0, 0, 1))
        return torch.cat([before, after], -1)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Scores of the vocabulary at every token, which do not depend on the token itself: [B, T, V]."""
        features = self.head(self.states(input_ids, token_type_ids, attention_mask=attention_mask))
        return F.linear(features, self.table, self.head.bias)
