"""ELECTRA: replaced token detection (Clark et al., 2020, arXiv 2003.10555).

Some tokens of a row are masked; a small generator fills the gaps with samples of its own; the discriminator tells for
every token whether it is the original. Both learn at once:

    loss = generator_weight     * mean over masked tokens of  -log p_generator(original | masked)
         + discriminator_weight * mean over all tokens of     BCE(discriminator(corrupted), corrupted != original)

The samples carry no gradient: the generator learns by maximum likelihood and is not rewarded for fooling anyone.
`electra-15` is the paper's ablation that judges the masked positions only.

Shapes in comments: B rows, T tokens of a row, K masked positions of a row.
"""

import torch
from torch import Tensor

from elektron.kernels.judging import Judged
from elektron.kernels.masking import Corrupted, corrupt, covered, masked_count, picked
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import EncoderConfig
from elektron.model.heads import Discriminator, Generator
from elektron.objectives import proposing, sentences
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Objective, ObjectiveConfig, Outcome, noise_of
from elektron.objectives.proposing import (
    Proposed,
    generator_metrics,
    make_proposer,
    propose,
    proposing_flops,
    shared_embeddings,
    stages_with,
    with_generator,
)
from elektron.objectives.sentences import SentenceHead, sentence_metrics, spared

JUDGED = ("tokens", "discriminator_loss", "discriminator_hits", "flagged", "replaced", "caught")


class Electra(Objective):
    """The two networks and their loss."""

    def __init__(self, shape: EncoderConfig, config: ObjectiveConfig, lexicon: Lexicon) -> None:
        super().__init__()
        self.config, self.lexicon = config, lexicon
        large, small = shared_embeddings(shape, config, lexicon.size)
        self.discriminator = Discriminator(shape, large)
        self.generator = make_proposer(shape, config, small, self.discriminator.encoder)
        self.sentence = SentenceHead(shape.width) if config.sentence_weight else None
        self.tallies = *proposing.TALLIES, *JUDGED, *(sentences.TALLIES if self.sentence else ())
        self.stages = stages_with(config, "discriminator.", "sentence.")

    def forward(self, original: Tensor, segments: Tensor, keys: Tensor, progress: Tensor | float = 1.0) -> Outcome:
        config, noise = self.config, noise_of(keys, self.training)
        # mask, generate and sample
        proposed = propose(self.generator, config, self.lexicon, original, segments, noise, progress)
        # label
        found = labelled(config, original, proposed)
        touched = None
        if self.sentence is not None:
            found, touched = spared(original, found, noise.sentences)
        # discriminate
        hidden = self.discriminator.encoder(found.corrupted, segments, keys=noise.encoder)
        judged, labels = self._judge(hidden, found.replaced, proposed.positions)
        # weigh
        loss = (
            config.generator_weight * proposed.loss / proposed.targets.numel()
            + config.discriminator_weight * judged.loss / judged.scores.numel()
        )
        tallies = [proposed.tallies, judged_tallies(judged)]
        if self.sentence is not None and touched is not None:
            told, of_rows = self.sentence(hidden, touched)
            loss = loss + config.sentence_weight * told / len(original)
            tallies.append(of_rows)
        return Outcome(loss, torch.cat(tallies), judged.scores, labels, found.corrupted, proposed.positions)

    def _judge(self, hidden: Tensor, replaced: Tensor, positions: Tensor) -> tuple[Judged, Tensor]:
        """What the discriminator says, and what is true: [B, T], or [B, K] where only these are judged."""
        if self.config.kind == "electra-15":
            hidden, replaced = picked(hidden, positions), replaced.gather(1, positions)
        return self.discriminator.head.judge(hidden, replaced), replaced

    def summary(self, tallies: dict[str, float]) -> dict[str, float]:
        found = electra_metrics(self.config, tallies)
        if self.sentence is not None:
            found |= sentence_metrics(tallies)
            found["loss"] += self.config.sentence_weight * found["sentence_loss"]
        return found

    def flops_per_token(self, length: int) -> float:
        large, words = self.discriminator.encoder.config, self.lexicon.size
        judged = masked_count(length, self.config.mask_rate) / length if self.config.kind == "electra-15" else 1.0
        discriminator = PASSES * (encoder_flops(large, length) + judged * judging_flops(large))
        return discriminator + proposing_flops(self.generator, self.config, length, words)

    def networks(self) -> dict[str, Discriminator | Generator]:
        return with_generator("discriminator", self.discriminator, self.generator)


def labelled(config: ObjectiveConfig, original: Tensor, proposed: Proposed) -> Corrupted:
    """The corrupted row, and which of its tokens count as replaced: a sample that is the original token is an original
    token, unless the config says otherwise."""
    found = corrupt(original, proposed.positions, proposed.sampled)
    if config.equal == "original":
        return found
    everywhere = torch.ones_like(proposed.positions)
    return found._replace(replaced=covered(proposed.positions, everywhere, original.shape[1]))


def judged_tallies(judged: Judged) -> Tensor:
    size = torch.full((1,), judged.scores.numel(), dtype=torch.float64, device=judged.scores.device)
    return torch.cat([size, judged.tallies])


def electra_metrics(config: ObjectiveConfig, tallies: dict[str, float]) -> dict[str, float]:
    """Of a generator and a discriminator, and the weighed sum of their losses."""
    found = generator_metrics(tallies) | discriminator_metrics(tallies)
    generator, discriminator = found["generator_loss"], found["discriminator_loss"]
    return {"loss": config.generator_weight * generator + config.discriminator_weight * discriminator, **found}


def discriminator_metrics(tallies: dict[str, float]) -> dict[str, float]:
    tokens = tallies["tokens"]
    return {
        "discriminator_loss": tallies["discriminator_loss"] / tokens,
        "discriminator_accuracy": tallies["discriminator_hits"] / tokens,
        "discriminator_precision": tallies["caught"] / max(1.0, tallies["flagged"]),
        "discriminator_recall": tallies["caught"] / max(1.0, tallies["replaced"]),
        "replaced_rate": tallies["replaced"] / tokens,
    }


def judging_flops(shape: EncoderConfig) -> float:
    """Forward FLOPs of the discriminator's head for a token that is judged."""
    return 2 * shape.width * (shape.width + 1)
