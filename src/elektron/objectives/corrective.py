"""COCO-LM (Meng et al., 2021, arXiv 2102.08473): an encoder that corrects text, and knows a row from a part of it.

A generator corrupts the row as in ELECTRA. The encoder has a gate D that says how much it trusts its input, a head over
the vocabulary, and a [CLS] whose state is to be alike for the corrupted row and for a crop of the original one:

    p(token) = D * [token is the input's] + (1 - D) * softmax(token)        D stands still here
    loss     = generator_weight     * mean over masked tokens of  -log p_generator(original | masked)
             + discriminator_weight * mean over all tokens of     BCE(D, corrupted = original)
             +                        mean over masked tokens of  -log p(original)
             + contrast_weight      * mean over all views of      -log softmax(likeness to its pair)

A crop is [CLS] and nine tenths of the row in one piece, with positions counted anew. The 2B views of a batch are the B
corrupted rows and the B crops; the likeness of two is the cosine of their [CLS] states over `contrast_temperature`; a
view's pair is the other of the same row, and the softmax is over all views but itself. So this term depends on which
rows come together: with accumulation, those of one part of the batch, on whichever ranks they are.

Shapes in comments: B rows, T tokens of a row, K masked positions of a row, C tokens of a crop, D width.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.kernels.counters import elements, uniform
from elektron.kernels.judging import Judged, judge
from elektron.kernels.masking import corrupt, masked_count, picked
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import EncoderConfig
from elektron.model.heads import CopyHead, Discriminator, Generator
from elektron.objectives import proposing
from elektron.objectives.all_tokens_mlm import copied_losses
from elektron.objectives.electra import JUDGED, discriminator_metrics
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.mlm import NAMED, encoder_metrics, named_tallies
from elektron.objectives.objective import Noise, Objective, ObjectiveConfig, Outcome, Together, apart, noise_of
from elektron.objectives.proposing import (
    Proposed,
    generator_metrics,
    make_proposer,
    named,
    naming_flops,
    propose,
    proposing_flops,
    shared_embeddings,
    stages_with,
    with_generator,
)

CONTRASTED = ("views", "contrast_loss", "contrast_hits")
_CROPPED = 0.9
"""Tokens of a crop, as a share of the row's."""


class Corrected(NamedTuple):
    """How well the masked tokens were named."""

    loss: Tensor  # [] the sum of -log p(original)
    tallies: Tensor  # [NAMED] float64


class Contrasted(NamedTuple):
    """How well views of the same row were told from those of others."""

    loss: Tensor  # [] the sum over the 2B views
    tallies: Tensor  # [CONTRASTED] float64


class Corrective(Objective):
    """A small network that fills gaps, and a large one that says where, what was there, and which row it is."""

    tallies = (*proposing.TALLIES, *JUDGED, *NAMED, *CONTRASTED)

    def __init__(self, shape: EncoderConfig, config: ObjectiveConfig, lexicon: Lexicon) -> None:
        super().__init__()
        self.config, self.lexicon = config, lexicon
        large, small = shared_embeddings(shape, config, lexicon.size)
        self.network = Generator(shape, large)
        self.gate = CopyHead(shape.width)
        self.generator = make_proposer(shape, config, small, self.network.encoder)
        self.stages = stages_with(config, "network.", "gate.")

    def forward(self, original: Tensor, segments: Tensor, keys: Tensor, progress: Tensor | float = 1.0) -> Outcome:
        config, noise = self.config, noise_of(keys, self.training)
        proposed = propose(self.generator, config, self.lexicon, original, segments, noise, progress)
        corrupted, replaced = corrupt(original, proposed.positions, proposed.sampled)
        # read what was corrupted, and a crop of what was not
        hidden = self.network.encoder(corrupted, segments, keys=noise.encoder)  # [B, T, D]
        crop = crops(original.shape[1], noise.crop)  # [B, C]
        other = self.network.encoder(original.gather(1, crop), segments.gather(1, crop), keys=noise.second)  # [B, C, D]
        # trust, correct, tell apart
        trusted = judge(hidden, self.gate.score.weight, self.gate.score.bias, ~replaced)
        corrected = self._correct(hidden, trusted.scores, replaced, proposed, noise)
        together = self.together if self.training else apart
        contrasted = contrast(hidden[:, 0], other[:, 0], config.contrast_temperature, together)
        # weigh
        loss = (
            (config.generator_weight * proposed.loss + corrected.loss) / proposed.targets.numel()
            + config.discriminator_weight * trusted.loss / replaced.numel()
            + config.contrast_weight * contrasted.loss / (2 * len(original))
        )
        tallies = [proposed.tallies, doubted_tallies(trusted), corrected.tallies, contrasted.tallies]
        return Outcome(loss, torch.cat(tallies), -trusted.scores, replaced, corrupted, proposed.positions)

    def _correct(self, hidden: Tensor, trust: Tensor, replaced: Tensor, proposed: Proposed, noise: Noise) -> Corrected:
        """From states [B, T, D] and the logits of D [B, T], which carry no gradient."""
        positions, targets = proposed.positions, proposed.targets
        keys = elements(noise.samples, positions.shape[1])
        said = named(self.network, picked(hidden, positions), targets, self.config, keys)
        at_masked = trust.gather(1, positions).flatten(), said.losses, replaced.gather(1, positions).flatten()
        loss = copied_losses(*at_masked).sum()
        return Corrected(loss, named_tallies(loss, said))

    def summary(self, tallies: dict[str, float]) -> dict[str, float]:
        found = generator_metrics(tallies) | discriminator_metrics(tallies) | encoder_metrics(tallies)
        views = tallies["views"]
        found |= {
            "contrast_loss": tallies["contrast_loss"] / views,
            "contrast_accuracy": tallies["contrast_hits"] / views,
        }
        loss = (
            self.config.generator_weight * found["generator_loss"]
            + self.config.discriminator_weight * found["discriminator_loss"]
            + found["encoder_loss"]
            + self.config.contrast_weight * found["contrast_loss"]
        )
        return {"loss": loss, **found}

    def flops_per_token(self, length: int) -> float:
        shape, words = self.network.encoder.config, self.lexicon.size
        masked, cropped = masked_count(length, self.config.mask_rate) / length, crop_length(length)
        reading = encoder_flops(shape, length) + cropped / length * encoder_flops(shape, cropped)
        network = PASSES * (reading + masked * naming_flops(shape, words) + 2 * shape.width)
        return network + proposing_flops(self.generator, self.config, length, words)

    def networks(self) -> dict[str, Discriminator | Generator]:
        return with_generator("encoder", self.network, self.generator)


def crop_length(length: int) -> int:
    """C: [CLS] is one of them."""
    return round(_CROPPED * length)


def crops(length: int, keys: Tensor) -> Tensor:
    """Which tokens of rows of `length` their crops are made of, [B, C]: the first, then a piece that begins anywhere.
    The keys [B] are the rows' noise."""
    size = crop_length(length)
    begins = 1 + (uniform(keys) * (length - size + 1)).long()
    piece = begins[:, None] + torch.arange(size - 1, device=keys.device)
    return F.pad(piece, (1, 0))


def contrast(
    ones: Tensor, others: Tensor, temperature: float, together: Callable[[Tensor], Together] = apart
) -> Contrasted:
    """States of rows [B, D] and of the same rows seen otherwise; the rows of all ranks are A."""
    ours = F.normalize(torch.stack([ones, others], 1).float(), dim=-1)  # [B, 2, D]
    rows, first = together(ours)  # [A, 2, D]
    mine, views = (both.transpose(0, 1).flatten(0, 1) for both in (ours, rows))  # [2B, D], [2A, D]
    at = first + torch.arange(len(ones), device=ones.device)
    itself, pairs = torch.cat([at, at + len(rows)]), torch.cat([at + len(rows), at])
    is_itself = itself[:, None] == torch.arange(len(views), device=ones.device)
    likeness = (mine @ views.T / temperature).masked_fill(is_itself, -torch.inf)
    loss = F.cross_entropy(likeness, pairs, reduction="sum")
    return Contrasted(loss, _contrast_tallies(loss, likeness, pairs))


@torch.no_grad()
def _contrast_tallies(loss: Tensor, likeness: Tensor, pairs: Tensor) -> Tensor:
    hits = likeness.gather(1, pairs[:, None]).squeeze(1) == likeness.amax(1)
    size = torch.full((1,), len(pairs), dtype=torch.float64, device=loss.device)
    return torch.cat([size, torch.stack([loss, hits.sum()]).double()])


def doubted_tallies(trusted: Judged) -> Tensor:
    """The counts of JUDGED, which are of tokens that are replaced, from those of tokens that are not."""
    loss, hits, trusts, originals, both = trusted.tallies.unbind()
    size = torch.full_like(loss, trusted.scores.numel())
    return torch.stack([size, loss, hits, size - trusts, size - originals, size - trusts - originals + both])
