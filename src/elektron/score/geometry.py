"""The geometry of hidden states: how much of their space an encoder uses, layer by layer.

    anisotropy      mean cosine of the states of two tokens of different rows (Ethayarajh, 2019, arXiv 1909.00512)
    within a row    mean cosine of the states of two tokens of one row: what is beyond the former is their context
    effective rank  exp(entropy of s / sum(s)), s the singular values of the centred states (Roy and Vetterli, 2007)
    first component share of the variance in the direction that has most of it

Both cosines are over all pairs that there are, not over some that were drawn: with u the states of length one, their
sum over different rows is |sum u|^2 less the same of each row. All is added up in float64 as rows come, so memory does
not grow with them, and what is found does not depend on how they are batched. [CLS], [SEP] and padding do not count.

Shapes in comments: B rows, T tokens of a row, D width.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elektron.data.batches import Batch
from elektron.data.tokenizer import Tokenizer
from elektron.model.encoder import Encoder


class Layer(NamedTuple):
    """What the states of a layer are like."""

    anisotropy: float
    within: float
    rank: float
    first: float
    norm: float
    """The mean of their lengths."""
    width: int


class Text(NamedTuple):
    """Rows to be read."""

    tokens: Tensor  # [B, T]
    segments: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool, where there is a token
    counts: Tensor  # [B, T] bool, where it is one of the text


class Spread:
    """States of one layer, added up."""

    def __init__(self, width: int) -> None:
        self._tokens = self._pairs = 0  # pairs: the squares of rows' tokens
        self._mean, self._scatter = torch.zeros(width, dtype=torch.float64), torch.zeros(width, width).double()
        self._units, self._squares, self._lengths = torch.zeros(width, dtype=torch.float64), 0.0, 0.0

    def add(self, states: Tensor, counts: Tensor) -> None:
        """Of rows [B, T, D], where `counts` [B, T] says so."""
        states, counts = states.double().cpu(), counts.cpu()
        lengths = states.norm(dim=-1, keepdim=True)
        units = (states / lengths.clamp(min=1e-300) * counts[..., None]).sum(1)  # [B, D]
        self._units += units.sum(0)
        self._squares += float(units.square().sum())
        self._pairs += int(counts.sum(1).square().sum())
        self._lengths += float(lengths[counts].sum())
        self._scatter_with(states[counts])

    def _scatter_with(self, states: Tensor) -> None:
        """Means and products of distances from them, of those before and these (Chan et al., 1983)."""
        if not len(states):
            return
        total, mean = self._tokens + len(states), states.mean(0)
        apart, centred = mean - self._mean, states - mean
        self._scatter += centred.T @ centred + torch.outer(apart, apart) * (self._tokens * len(states) / total)
        self._mean += apart * (len(states) / total)
        self._tokens = total

    def layer(self) -> Layer:
        others, same = self._tokens**2 - self._pairs, self._pairs - self._tokens
        if not others or not same:
            raise ValueError("the geometry of states takes at least two rows, and two tokens of text in one")
        variances = torch.linalg.eigvalsh(self._scatter).clamp(min=0).numpy()
        return Layer(
            (float(self._units.square().sum()) - self._squares) / others,
            (self._squares - self._tokens) / same,
            effective_rank(np.sqrt(variances)),
            float(variances.max() / variances.sum()) if variances.any() else 1.0,
            self._lengths / self._tokens,
            len(self._mean),
        )


def effective_rank(singular: np.ndarray) -> float:
    """Of singular values that are not negative; 1 where all are zero."""
    shares = singular / (singular.sum() or 1.0)
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


@torch.no_grad()
def layers_of(encoder: Encoder, texts: Iterable[Text]) -> list[Layer]:
    """Of the embeddings, as the first layer reads them, and of each layer."""
    spreads = [Spread(encoder.config.width) for _ in range(encoder.config.layers + 1)]
    device = encoder.embeddings.word.weight.device
    for text in texts:
        tokens, segments, mask = (tensor.to(device) for tensor in text[:3])
        for spread, states in zip(spreads, encoder.states(tokens, segments, None if mask.all() else mask), strict=True):
            spread.add(states, text.counts)
    return [spread.layer() for spread in spreads]


def as_they_are(batches: Iterable[Batch], tokenizer: Tokenizer) -> Iterator[Text]:
    """Rows of the data, for an encoder with its tokenizer."""
    for original, segments, _ in batches:
        yield Text(original, segments, torch.ones_like(original, dtype=torch.bool), _is_text(original, tokenizer))


def read_anew(batches: Iterable[Batch], tokenizer: Tokenizer, other: Tokenizer, longest: int) -> Iterator[Text]:
    """The same text in another tokenizer's tokens, `longest` of a row at the most."""
    for original, segments, _ in batches:
        inside = _is_text(original, tokenizer)
        rows = zip(original, inside, segments, strict=True)
        parts = [(row[here & (of == 0)], row[here & (of == 1)]) for row, here, of in rows]
        texts = [tokenizer.text(part.tolist()) for pair in parts for part in pair]
        ids, lengths = other.encode(texts)
        pieces = np.split(ids.astype(np.int64), np.cumsum(lengths)[:-1])
        yield _padded(list(zip(pieces[::2], pieces[1::2], strict=True)), other, longest)


def _padded(pairs: list[tuple[np.ndarray, np.ndarray]], tokenizer: Tokenizer, longest: int) -> Text:
    """[CLS] A [SEP] B [SEP], cut where there is no room."""
    cls, sep = tokenizer.specials.cls, tokenizer.specials.sep
    rows = [np.concatenate([[cls], a, [sep], b, [sep]])[:longest] for a, b in pairs]
    width = max(map(len, rows))
    tokens = np.stack([np.pad(row, (0, width - len(row)), constant_values=tokenizer.specials.pad) for row in rows])
    places, ends = np.arange(width), np.array([[1 + len(a)] for a, _ in pairs])
    mask = places < np.array([[len(row)] for row in rows])
    original = torch.from_numpy(tokens)
    is_there = torch.from_numpy(mask)
    segments = torch.from_numpy(((places > ends) & mask).astype(np.int64))
    return Text(original, segments, is_there, _is_text(original, tokenizer) & is_there)


def _is_text(tokens: Tensor, tokenizer: Tokenizer) -> Tensor:
    return (tokens != tokenizer.specials.cls) & (tokens != tokenizer.specials.sep)
