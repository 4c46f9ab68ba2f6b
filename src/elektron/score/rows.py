"""Networks over rows of tokens of any lengths: what is said of each token, in batches with little padding.

Rows are without [CLS] and [SEP], which are put around them, and no longer than the network reads with these. Their
first tokens may be there for the others' sake alone.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elektron.data.examples import in_order, rounded
from elektron.data.tokenizer import Specials
from elektron.model.heads import Discriminator, Generator
from elektron.model.task_heads import Tuned

ENDS = 2
"""[CLS] and [SEP]."""
_TOKENS = {"cpu": 1 << 10, "cuda": 1 << 17}
"""Of a batch."""


class Row(NamedTuple):
    """Tokens that are read together."""

    ids: np.ndarray  # [n]
    first: int = 0
    """The first of those that something is said of."""


Say = Callable[[Sequence[Row]], list[np.ndarray]]
"""What is said of rows, a number for each of their tokens [n - first]."""


class Batch(NamedTuple):
    """Some of the rows."""

    numbers: np.ndarray  # [B] which
    tokens: Tensor  # [B, T]
    mask: Tensor | None  # [B, T] where there is a token, if not everywhere


def batches(rows: Sequence[np.ndarray], specials: Specials, device: torch.device, positions: int) -> Iterator[Batch]:
    """All rows that have tokens, the longest first."""
    lengths = np.array([len(row) + ENDS for row in rows], dtype=np.int64)
    first, last = [specials.cls], [specials.sep]
    for numbers in in_order(lengths, _TOKENS[device.type]):
        numbers = numbers[lengths[numbers] > ENDS]
        if not len(numbers):
            return
        longest = int(lengths[numbers[0]])
        longest = rounded(longest, positions) if device.type == "cuda" else longest
        there = np.arange(longest) < lengths[numbers, None]  # [B, T]
        tokens = np.full((len(numbers), longest), specials.pad, dtype=np.int64)
        tokens[there] = np.concatenate([part for n in numbers for part in (first, rows[n], last)])
        mask = None if there.all() else torch.from_numpy(there).to(device)
        yield Batch(numbers, torch.from_numpy(tokens).to(device), mask)


def replaced_logits(discriminator: Discriminator, specials: Specials) -> Say:
    """The logits of "replaced"."""
    return _saying(discriminator, discriminator, specials)


def error_logits(tagger: Tuned, wrong: str, specials: Specials) -> Say:
    """Of the tag `wrong` against all others."""
    number = tagger.labels.index(wrong)

    def odds(tokens: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor:
        scores = tagger(tokens, segments, mask).float()  # [B, T, C]
        others = torch.cat([scores[..., :number], scores[..., number + 1 :]], -1)
        return scores[..., number] - others.logsumexp(-1)

    return _saying(odds, tagger, specials)


def _saying(
    logits_of: Callable[[Tensor, Tensor, Tensor | None], Tensor], network: Discriminator | Tuned, specials: Specials
) -> Say:
    """What a network says of every token: [B, T] of tokens, segments and mask."""
    device, positions = next(network.parameters()).device, network.encoder.config.positions

    @torch.no_grad()
    def say(rows: Sequence[Row]) -> list[np.ndarray]:
        found = [np.empty(0, dtype=np.float32)] * len(rows)
        for batch in batches([row.ids for row in rows], specials, device, positions):
            logits = logits_of(batch.tokens, torch.zeros_like(batch.tokens), batch.mask).float().cpu().numpy()
            for number, of_row in zip(batch.numbers.tolist(), logits, strict=True):
                ids, first = rows[number]
                found[number] = of_row[1 + first : 1 + len(ids)]
        return found

    return say


def masked_log_probabilities(generator: Generator, specials: Specials) -> Say:
    """log p(token | the others): each token of a row that something is said of is masked in turn."""
    device, positions = next(generator.parameters()).device, generator.encoder.config.positions

    @torch.no_grad()
    def say(rows: Sequence[Row]) -> list[np.ndarray]:
        found = [np.empty(len(row.ids) - row.first, dtype=np.float32) for row in rows]
        places = [(number, place) for number, row in enumerate(rows) for place in range(row.first, len(row.ids))]
        masked = [_masked(rows[number].ids, place, specials.mask) for number, place in places]
        for batch in batches(masked, specials, device, positions):
            chances = spoken(generator, batch, specials.mask).log_softmax(-1)  # [B, V]
            asked = [places[n] for n in batch.numbers]
            targets = torch.tensor([int(rows[number].ids[place]) for number, place in asked], device=device)
            values = chances.gather(1, targets[:, None]).squeeze(1).cpu().numpy()
            for (number, place), value in zip(asked, values, strict=True):
                found[number][place - rows[number].first] = value
        return found

    return say


def spoken(generator: Generator, batch: Batch, mask: int) -> Tensor:
    """Scores of the vocabulary at the one mask of each row: [B, V] in float32."""
    hidden = generator.encoder(batch.tokens, torch.zeros_like(batch.tokens), batch.mask)[batch.tokens == mask]  # [B, D]
    features = generator.head(hidden)
    return torch.nn.functional.linear(features, generator.table, generator.head.bias.to(features.dtype)).float()


def _masked(row: np.ndarray, place: int, mask: int) -> np.ndarray:
    masked = row.copy()
    masked[place] = mask
    return masked
