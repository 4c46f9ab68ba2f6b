"""What an objective has to know of the vocabulary."""

import numpy as np
import torch
from torch import Tensor, nn

from elektron.data.tokenizer import Specials, Tokenizer

_BEGINNINGS = ("\u2581", "\u0120")
"""What marks a token that begins a word, in SentencePiece's vocabularies and in byte-level ones."""
_CONTINUATION = "##"
"""What marks one that does not, in WordPiece's."""


class Lexicon(nn.Module):
    """The special tokens, which tokens go on with the word before, and how frequent each is."""

    continues: Tensor  # [V] bool
    frequencies: Tensor  # [V] float32, that sum to one

    def __init__(
        self, specials: Specials, size: int, continues: Tensor | None = None, counts: np.ndarray | None = None
    ) -> None:
        super().__init__()
        self.specials, self.size = specials, size
        counted = torch.ones(size) if counts is None else torch.from_numpy(counts).double() + 1
        self.register_buffer("continues", torch.zeros(size, dtype=torch.bool) if continues is None else continues)
        self.register_buffer("frequencies", (counted / counted.sum()).float())


def lexicon_of(tokenizer: Tokenizer, counts: np.ndarray | None = None) -> Lexicon:
    """`counts` [V] is how often each token occurs in the text to train on; all are alike where nobody counted."""
    tokens = tokenizer.tokens(range(tokenizer.vocab_size))
    if any(token.startswith(_BEGINNINGS) for token in tokens):
        continues = [not token.startswith(_BEGINNINGS) for token in tokens]
    else:
        continues = [token.startswith(_CONTINUATION) for token in tokens]
    return Lexicon(tokenizer.specials, tokenizer.vocab_size, torch.tensor(continues), counts)
