"""Electric: an energy for every token, learned by contrast with noise (Clark et al., 2020, arXiv 2012.08561).

The discriminator's score is an energy E: exp(-E) is how likely the token is among the others of its row, with no sum
over the vocabulary to make it so. It is learned by noise-contrastive estimation (Gutmann and Hyvarinen, 2010): k of the
n ordinary tokens of a row, those that are not [CLS] or [SEP], become samples of a noise model q, a two-tower network
that names every token from the others. Of a token x the odds of being noise are then k q(x) to (n - k) exp(-E(x)):

    logit = E(corrupted) + log q(corrupted) + log(k / (n - k))
    loss  = generator_weight     * mean over ordinary tokens of  -log q(original)
          + discriminator_weight * mean over ordinary tokens of  BCE(logit, the token is a sample)

q is of the token that stands in the corrupted row, given the original others. A sample is noise even if it is the
original token, unlike ELECTRA's. The noise model learns by its own likelihood alone: log q carries no gradient into the
second term.

Shapes in comments: B rows, T tokens of a row, K sampled positions of a row, D width of a tower, E embedding width.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.data import batches
from elektron.data.tokenizer import Specials
from elektron.kernels.counters import elements
from elektron.kernels.masking import corrupt, masked_count, picked
from elektron.kernels.vocabulary import speak
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import EncoderConfig
from elektron.model.heads import Discriminator, Generator, merged
from elektron.model.two_tower import TwoTower
from elektron.objectives import proposing
from elektron.objectives.electra import JUDGED, electra_metrics, judging_flops
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.masking import hide
from elektron.objectives.objective import Noise, Objective, ObjectiveConfig, Outcome, generator_shape, noise_of
from elektron.objectives.proposing import naming_flops, shared_embeddings


class Proposed(NamedTuple):
    """What the noise model says."""

    sampled: Tensor  # [B, K]
    losses: Tensor  # [B, T] -log q(original)
    log_q: Tensor  # [B, T] log q(corrupted), without gradient
    hits: Tensor  # [B, T] whether the original is its best guess
    sampled_hits: Tensor  # [B, T] whether the original is what it would sample there


class Electric(Objective):
    """A network of energies, the noise model, and their loss. The noise model names every ordinary token, so what is
    tallied of it, "masked" too, is of all of them; "replaced" are the samples."""

    tallies = (*proposing.TALLIES, *JUDGED)

    def __init__(self, shape: EncoderConfig, config: ObjectiveConfig, lexicon: Lexicon) -> None:
        super().__init__()
        self.config, self.lexicon = config, lexicon
        large, small = shared_embeddings(shape, config, lexicon.size)
        self.discriminator = Discriminator(shape, large)
        self.generator = TwoTower(generator_shape(shape, config), small)

    def forward(self, original: Tensor, segments: Tensor, keys: Tensor, progress: Tensor | float = 1.0) -> Outcome:
        """In training there are no scores in the outcome: how many tokens are ordinary is not known ahead, and a GPU's
        recording takes nothing that is not."""
        config, noise = self.config, noise_of(keys, self.training)
        ordinary = is_ordinary(original, self.lexicon.specials)
        positions = self._choose(original, noise)
        # propose
        proposed = self._propose(original, segments, positions, noise)
        corrupted, _ = corrupt(original, positions, proposed.sampled)
        # label: a sample that is the original token is a sample
        is_sampled = torch.zeros_like(ordinary).scatter(1, positions, True)
        # contrast
        hidden = self.discriminator.encoder(corrupted, segments, keys=noise.encoder)
        counts = (is_sampled & ordinary).sum(1), ordinary.sum(1)
        logits = noise_logits(self.discriminator.head.scores(hidden), proposed.log_q, *counts)
        losses = F.binary_cross_entropy_with_logits(logits, is_sampled.to(logits.dtype), reduction="none")
        # weigh
        weighed = config.generator_weight * proposed.losses + config.discriminator_weight * losses
        loss = (weighed * ordinary).sum() / ordinary.sum()
        tallies = _tallies(proposed, logits, losses, is_sampled, ordinary)
        if self.training:
            return Outcome(loss, tallies)
        return Outcome(loss, tallies, logits.detach()[ordinary], is_sampled[ordinary])

    def _choose(self, original: Tensor, noise: Noise) -> Tensor:
        """[B, K] what becomes noise."""
        positions = hide(self.config, self.lexicon, original, noise).positions
        if positions.shape[1] >= original.shape[1] - batches.SPECIALS:
            raise ValueError(
                f"--objective.mask-rate {self.config.mask_rate} of rows of {original.shape[1]} tokens leaves none to "
                "contrast with noise: lower it"
            )
        return positions

    def _propose(self, original: Tensor, segments: Tensor, positions: Tensor, noise: Noise) -> Proposed:
        """Name every token from the others, sample at the positions, and tell how likely the samples were."""
        network = self.generator
        features = network.head(network.states(original, segments, noise.generator))  # [B, T, E]
        keys = elements(noise.samples, original.shape[1])  # [B, T]
        words = network.table, network.head.bias
        said = speak(features.flatten(0, 1), *words, original.flatten(), 1.0, True, keys.flatten())
        samples = said.sampled.view_as(original)
        sampled, losses = samples.gather(1, positions), said.losses.view_as(original)
        with torch.no_grad():
            known = picked(features, positions).flatten(0, 1)  # [B K, E]
            of_sampled = speak(known, *words, sampled.flatten(), 1.0, True, keys.gather(1, positions).flatten()).losses
            log_q = -losses.scatter(1, positions, of_sampled.view_as(sampled))
        return Proposed(sampled, losses, log_q, said.hits.view_as(original), samples == original)

    def summary(self, tallies: dict[str, float]) -> dict[str, float]:
        return electra_metrics(self.config, tallies)

    def flops_per_token(self, length: int) -> float:
        """The noise model names all tokens and learns; the samples meet the vocabulary once more, and that is all."""
        large, small = self.discriminator.encoder.config, self.generator.left.config
        noise = 2 * encoder_flops(small, length) + naming_flops(small, self.lexicon.size, towers=2)
        again = masked_count(length, self.config.mask_rate) / length * naming_flops(small, self.lexicon.size, towers=0)
        return PASSES * (encoder_flops(large, length) + judging_flops(large) + noise) + again

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"discriminator": merged(self.discriminator)}


def noise_logits(energies: Tensor, log_q: Tensor, sampled: Tensor, ordinary: Tensor) -> Tensor:
    """Logits of being noise [B, T], of rows that have [B] samples among their ordinary tokens."""
    odds = sampled.clamp(min=1) / (ordinary - sampled).clamp(min=1)  # a row of hardly any ordinary tokens has some too
    return energies + log_q + odds.log()[:, None]


@torch.no_grad()
def pseudo_log_likelihood(
    discriminator: Discriminator, tokens: Tensor, segments: Tensor, specials: Specials, mask: Tensor | None = None
) -> Tensor:
    """How likely rows [B, T] are, each token among the others: the sum of -E over the ordinary tokens, from one pass.
    [B], to compare rows by; `mask` [B, T] is 1 where a token is to be seen, None when all are."""
    energies = discriminator.head.scores(discriminator.encoder(tokens, segments, mask))
    counted = is_ordinary(tokens, specials)
    return -(energies * (counted if mask is None else counted & mask.bool())).sum(1)


def is_ordinary(tokens: Tensor, specials: Specials) -> Tensor:
    return (tokens != specials.cls) & (tokens != specials.sep)


@torch.no_grad()
def _tallies(proposed: Proposed, logits: Tensor, losses: Tensor, is_sampled: Tensor, ordinary: Tensor) -> Tensor:
    flagged = logits > 0
    of_noise = ordinary, proposed.losses, proposed.hits, proposed.sampled_hits
    of_judged = ordinary, losses, flagged == is_sampled, flagged, is_sampled, flagged & is_sampled
    return torch.stack([(tally * ordinary).sum(dtype=torch.float64) for tally in (*of_noise, *of_judged)])
