"""Replaced span detection: whole stretches of a row are replaced, by a generator that fills each from left to right.

A sample of ELECTRA's generator knows nothing of the sample beside it, so neighbours contradict each other, and that
gives them away. Here the generator is told what it has said before, in the same stretch:

    loss = generator_weight     * mean over masked tokens of  -log p(original | masked row, stretch so far)
         + discriminator_weight * mean over all tokens of     BCE(discriminator(corrupted), corrupted != original)

Positions are chosen in units of random length (units.py). A stretch is a maximal run of masked positions, which may be
several units that touch, cut every `span_longest` tokens. The generator, a masked LM, reads the masked row, followed by
a token for each masked position, in that position's place and segment: the token before it, if that is of the same
stretch, else [MASK]. Tokens of the row see the row; those that follow see the row, and their own stretch up to
themselves. Theirs are the states that are named. With the original as the tokens before, this is one pass for all; with
samples, every pass has one more token of each stretch to go on. The first of a stretch heard of no token before it: its
sample is that of the pass that learns. Samples carry no gradient.

The generator is not exported: nobody else's masked LM reads such rows.

Shapes in comments: B rows, T tokens of a row, K masked positions of a row, N = B K.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.kernels.counters import elements
from elektron.kernels.masking import corrupt, masked_count
from elektron.kernels.vocabulary import Spoken
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import EncoderConfig
from elektron.model.heads import Discriminator, Generator, merged
from elektron.objectives import proposing
from elektron.objectives.electra import JUDGED, electra_metrics, judged_tallies, judging_flops
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Noise, Objective, ObjectiveConfig, Outcome, generator_shape, noise_of
from elektron.objectives.proposing import (
    Proposed,
    named,
    naming_flops,
    shared_embeddings,
    tallies_of,
)
from elektron.objectives.units import random_begins, stretches


class Gaps(NamedTuple):
    """What is hidden of rows, and how their generator reads them."""

    positions: Tensor  # [B, K]
    targets: Tensor  # [B, K] the tokens there
    offsets: Tensor  # [B, K] how many tokens of its stretch come before
    masked: Tensor  # [B, T]
    segments: Tensor  # [B, T + K]
    places: Tensor  # [B, T + K]
    view: Tensor  # [B, T + K, T + K] whether the first may see the second


class Span(Objective):
    """A small network that fills stretches, and a large one that judges every token."""

    tallies = (*proposing.TALLIES, *JUDGED)

    def __init__(self, shape: EncoderConfig, config: ObjectiveConfig, lexicon: Lexicon) -> None:
        super().__init__()
        self.config, self.lexicon = config, lexicon
        large, small = shared_embeddings(shape, config, lexicon.size)
        self.discriminator = Discriminator(shape, large)
        self.generator = Generator(generator_shape(shape, config), small)

    def forward(self, original: Tensor, segments: Tensor, keys: Tensor, progress: Tensor | float = 1.0) -> Outcome:
        config, noise = self.config, noise_of(keys, self.training)
        # mask, generate and sample
        proposed = self._propose(self._hide(original, segments, noise), noise, progress)
        # label: a sample that is the original token is an original token
        corrupted, replaced = corrupt(original, proposed.positions, proposed.sampled)
        # discriminate
        hidden = self.discriminator.encoder(corrupted, segments, keys=noise.encoder)
        judged = self.discriminator.head.judge(hidden, replaced)
        # weigh
        loss = (
            config.generator_weight * proposed.loss / proposed.targets.numel()
            + config.discriminator_weight * judged.loss / judged.scores.numel()
        )
        tallies = torch.cat([proposed.tallies, judged_tallies(judged)])
        return Outcome(loss, tallies, judged.scores, replaced, corrupted, proposed.positions)

    def _hide(self, original: Tensor, segments: Tensor, noise: Noise) -> Gaps:
        config, specials = self.config, self.lexicon.specials
        length = original.shape[1]
        candidates = (original != specials.cls) & (original != specials.sep)
        begins = random_begins(candidates, config.span_mean, config.span_longest, noise.units)
        positions = stretches(candidates, begins, masked_count(length, config.mask_rate), noise.positions)
        offsets = offsets_of(positions, config.span_longest)
        row = torch.arange(length, device=original.device).expand_as(original)
        places = torch.cat([row, positions], 1)
        masked = original.scatter(1, positions, specials.mask)
        targets = original.gather(1, positions)
        return Gaps(positions, targets, offsets, masked, segments.gather(1, places), places, view_of(offsets, length))

    def _propose(self, gaps: Gaps, noise: Noise, progress: Tensor | float) -> Proposed:
        said = self._said(gaps, gaps.targets, noise, progress)
        sampled = self._sampled(gaps, said.sampled.view_as(gaps.targets), noise, progress)
        loss = said.losses.sum()
        tallies = tallies_of(loss, said._replace(sampled=sampled.flatten()), gaps.targets)
        return Proposed(gaps.positions, gaps.targets, sampled, loss, tallies)

    def _said(self, gaps: Gaps, filled: Tensor, noise: Noise, progress: Tensor | float) -> Spoken:
        """What the generator says of each gap, [N], where those before it are filled with `filled` [B, K]."""
        before = torch.where(gaps.offsets > 0, filled.roll(1, 1), self.lexicon.specials.mask)
        rows = torch.cat([gaps.masked, before], 1)
        hidden = self.generator.encoder(rows, gaps.segments, gaps.view, noise.generator, gaps.places)
        named_states = hidden[:, gaps.masked.shape[1] :]  # [B, K, D]
        keys = elements(noise.samples, filled.shape[1])
        return named(self.generator, named_states, gaps.targets, self.config, keys, progress)

    @torch.no_grad()
    def _sampled(self, gaps: Gaps, first: Tensor, noise: Noise, progress: Tensor | float) -> Tensor:
        """Samples [B, K] token after token, in all stretches at once, from samples that are right where one begins."""
        sampled = first
        for turn in range(1, min(self.config.span_longest, first.shape[1])):
            said = self._said(gaps, sampled, noise, progress)
            sampled = torch.where(gaps.offsets == turn, said.sampled.view_as(first), sampled)
        return sampled

    def summary(self, tallies: dict[str, float]) -> dict[str, float]:
        return electra_metrics(self.config, tallies)

    def flops_per_token(self, length: int) -> float:
        large, small = self.discriminator.encoder.config, self.generator.encoder.config
        count = masked_count(length, self.config.mask_rate)
        read, share = length + count, count / length
        filling = (1 + share) * encoder_flops(small, read) + share * naming_flops(small, self.lexicon.size)
        turns = min(self.config.span_longest, count) - 1  # forward alone
        return (PASSES + turns) * filling + PASSES * (encoder_flops(large, length) + judging_flops(large))

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"discriminator": merged(self.discriminator)}


def offsets_of(positions: Tensor, longest: int) -> Tensor:
    """How many positions of the same stretch come before each, [B, K]: a stretch is a maximal run of consecutive
    positions, cut every `longest`."""
    numbers = torch.arange(positions.shape[1], device=positions.device)
    goes_on = F.pad(positions.diff(dim=1) == 1, (1, 0))
    first = torch.where(goes_on, 0, numbers).cummax(1).values
    return (numbers - first) % longest


def view_of(offsets: Tensor, length: int) -> Tensor:
    """[B, T + K, T + K]: all see the `length` tokens of the row, and the others their own stretch up to themselves."""
    rows, count = offsets.shape
    stretch = torch.arange(count, device=offsets.device) - offsets  # named by its first
    view = torch.zeros(rows, length + count, length + count, dtype=torch.bool, device=offsets.device)
    view[:, :, :length] = True
    view[:, length:, length:] = (stretch[:, :, None] == stretch[:, None, :]).tril()
    return view
