"""Where a discriminator errs: what it said of every token of rows that its generator had a hand in.

Shapes in comments: n tokens, R rows, B rows of a batch, T tokens of a row, K masked positions of a row.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.data.tokenizer import Specials, Tokenizer
from elektron.kernels.masking import covered
from elektron.objectives.adversarial import Adversarial
from elektron.objectives.all_tokens_mlm import AllTokensMLM
from elektron.objectives.corrective import Corrective
from elektron.objectives.electra import Electra
from elektron.objectives.gumbel import Gumbel
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Objective, Outcome, noise_of
from elektron.objectives.proposing import chances
from elektron.objectives.two_stage import TwoStage
from elektron.score.calibration import sigmoid

_Telling = Electra | TwoStage | Adversarial | Gumbel | Corrective | AllTokensMLM
"""Those whose generator fills all gaps at once, and so can be asked how sure it was."""
WHOLE, FIRST, LATER = range(3)
"""Forms of tokens: a whole word, the first piece of one, another piece."""
_CONTEXT = 10
"""Tokens to either side of an example."""


class Tokens(NamedTuple):
    """Tokens that were judged, [n] of each."""

    row: np.ndarray
    position: np.ndarray  # in the row
    original: np.ndarray
    corrupted: np.ndarray  # the token that was read
    replaced: np.ndarray  # bool, what is true
    logit: np.ndarray  # float32, of "replaced"
    asked: np.ndarray  # bool, whether the generator had a say
    chance: np.ndarray  # float32, log p(the token that was read) by the generator; NaN where it was not asked
    form: np.ndarray  # of the original: WHOLE, FIRST or LATER

    def where(self, inside: np.ndarray) -> "Tokens":
        return Tokens(*(values[inside] for values in self))


class Seen(NamedTuple):
    """Tokens, and the rows they stood in."""

    tokens: Tokens
    rows: np.ndarray  # [R, T] as they were read


class Example(NamedTuple):
    """A token that was misjudged, in its place."""

    left: str
    original: str
    corrupted: str
    right: str
    probability: float
    """Of "replaced"."""
    chance: float | None
    """The probability that the generator gave it, where it was asked."""


@torch.no_grad()
def seen(model: Objective, original: Tensor, segments: Tensor, keys: Tensor, outcome: Outcome) -> Seen | None:
    """All that a pass says of its tokens; nothing where the objective has nobody who tells which were replaced."""
    scores, replaced, corrupted, positions = outcome.scores, outcome.replaced, outcome.corrupted, outcome.positions
    if scores is None or replaced is None or corrupted is None or positions is None:
        return None
    asked = covered(positions, torch.ones_like(positions), original.shape[1])
    if model.config.sentence_weight:
        asked &= (corrupted != original).any(1, keepdim=True)  # rows that were left alone after all
    chance = torch.full(original.shape, torch.nan, device=original.device)
    chance = chance.scatter(1, positions, _chances(model, original, segments, keys, corrupted.gather(1, positions)))
    chance = chance.masked_fill(~asked, torch.nan)
    everywhere = torch.arange(original.shape[1], device=original.device).expand_as(original)
    places = everywhere if scores.shape == original.shape else positions
    rows = torch.arange(len(original), device=original.device)[:, None].expand_as(places)
    here = original, corrupted, asked, chance, forms(original, model.lexicon)
    original, corrupted_here, asked, chance, form = (values.gather(1, places) for values in here)
    of_tokens = rows, places, original, corrupted_here, replaced, scores.float(), asked, chance, form
    return Seen(Tokens(*(values.flatten().cpu().numpy() for values in of_tokens)), corrupted.cpu().numpy())


def _chances(model: Objective, original: Tensor, segments: Tensor, keys: Tensor, tokens: Tensor) -> Tensor:
    if not isinstance(model, _Telling):
        return torch.full(tokens.shape, torch.nan, device=tokens.device)
    noise = noise_of(keys, is_training=False)
    return chances(model.generator, model.config, model.lexicon, original, segments, noise, tokens).float()


def forms(original: Tensor, lexicon: Lexicon) -> Tensor:
    """Of the tokens of rows [B, T]: whether each is a word or a piece of one."""
    later = lexicon.continues[original] & ~_is_special(original, lexicon.specials)
    goes_on = F.pad(later[:, 1:], (0, 1))
    return torch.where(later, LATER, torch.where(goes_on, FIRST, WHOLE))


def _is_special(tokens: Tensor, specials: Specials) -> Tensor:
    return (tokens == specials.cls) | (tokens == specials.sep)


def is_text(tokens: Tokens, specials: Specials) -> np.ndarray:
    """[n] bool: all but [CLS] and [SEP]."""
    return (tokens.original != specials.cls) & (tokens.original != specials.sep)


def joined(parts: Sequence[Seen]) -> Seen:
    """Batch after batch, its rows numbered on."""
    starts = np.cumsum([0] + [len(part.rows) for part in parts])
    tokens = [part.tokens._replace(row=part.tokens.row + start) for part, start in zip(parts, starts[:-1], strict=True)]
    columns = (np.concatenate(column) for column in zip(*tokens, strict=True))
    return Seen(Tokens(*columns), np.concatenate([part.rows for part in parts]))


def missed(found: Seen, tokenizer: Tokenizer, count: int) -> list[Example]:
    """Replaced tokens that were taken for originals, the surest first."""
    tokens = found.tokens
    return _examples(found, tokens.replaced & (tokens.corrupted != tokens.original), tokens.logit, tokenizer, count)


def alarms(found: Seen, tokenizer: Tokenizer, count: int) -> list[Example]:
    """Originals that were taken for replaced, the surest first."""
    inside = ~found.tokens.replaced & is_text(found.tokens, tokenizer.specials)
    return _examples(found, inside, -found.tokens.logit, tokenizer, count)


def _examples(found: Seen, inside: np.ndarray, order: np.ndarray, tokenizer: Tokenizer, count: int) -> list[Example]:
    """Those with the lowest values of `order`; of each pair of tokens one, so that they teach more than one thing."""
    chosen: dict[tuple[int, int], int] = {}
    places = np.flatnonzero(inside)
    for place in places[np.argsort(order[places], kind="stable")].tolist():
        if len(chosen) == count:
            break
        chosen.setdefault((int(found.tokens.original[place]), int(found.tokens.corrupted[place])), place)
    return [_example(found, place, tokenizer) for place in chosen.values()]


def _example(found: Seen, place: int, tokenizer: Tokenizer) -> Example:
    row, position, original, corrupted, _, logit, _, chance, _ = (values[place].item() for values in found.tokens)
    line = found.rows[row]
    before, after = line[max(1, position - _CONTEXT) : position], line[position + 1 : position + 1 + _CONTEXT]
    was, read = tokenizer.spelled([original, corrupted])
    return Example(
        tokenizer.text(before.tolist()),
        was,
        read,
        tokenizer.text(after.tolist()),
        float(sigmoid(logit)),
        None if np.isnan(chance) else float(np.exp(chance)),
    )
