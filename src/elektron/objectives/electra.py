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
from elektron.kernels.masking import corrupt, masked_count, picked
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import Embeddings, EncoderConfig
from elektron.model.heads import Discriminator, Generator
from elektron.objectives import proposing
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Noise, Objective, ObjectiveConfig, Outcome, generator_shape, noise_of
from elektron.objectives.proposing import generator_metrics, naming_flops, propose

JUDGED = ("tokens", "discriminator_loss", "discriminator_hits", "flagged", "replaced", "caught")


class Electra(Objective):
    """The two networks, with one set of embeddings, and their loss."""

    tallies = (*proposing.TALLIES, *JUDGED)

    def __init__(self, shape: EncoderConfig, config: ObjectiveConfig, lexicon: Lexicon) -> None:
        super().__init__()
        self.config, self.lexicon = config, lexicon
        embeddings = Embeddings(lexicon.size, shape)
        self.discriminator = Discriminator(shape, embeddings)
        self.generator = Generator(generator_shape(shape, config), embeddings)

    def forward(self, original: Tensor, segments: Tensor, keys: Tensor, progress: Tensor | float = 1.0) -> Outcome:
        config, noise = self.config, noise_of(keys, self.training)
        # mask, generate and sample
        proposed = propose(self.generator, config, self.lexicon, original, segments, noise)
        # label: a sample that is the original token is an original token
        corrupted, replaced = corrupt(original, proposed.positions, proposed.sampled)
        # discriminate
        judged = self._judge(corrupted, segments, replaced, proposed.positions, noise)
        # weigh
        loss = (
            config.generator_weight * proposed.loss / proposed.targets.numel()
            + config.discriminator_weight * judged.loss / judged.scores.numel()
        )
        tallies = torch.cat([proposed.tallies, judged_tallies(judged)])
        return Outcome(loss, tallies, judged.scores, self._of_judged(replaced, proposed.positions))

    def _judge(self, corrupted: Tensor, segments: Tensor, replaced: Tensor, positions: Tensor, noise: Noise) -> Judged:
        hidden = self.discriminator.encoder(corrupted, segments, keys=noise.encoder)
        if self.config.kind == "electra-15":
            hidden = picked(hidden, positions)
        return self.discriminator.head.judge(hidden, self._of_judged(replaced, positions))

    def _of_judged(self, replaced: Tensor, positions: Tensor) -> Tensor:
        """The labels [B, T], or [B, K] where only these are judged."""
        return replaced.gather(1, positions) if self.config.kind == "electra-15" else replaced

    def summary(self, tallies: dict[str, float]) -> dict[str, float]:
        found = generator_metrics(tallies) | discriminator_metrics(tallies)
        loss = (
            self.config.generator_weight * found["generator_loss"]
            + self.config.discriminator_weight * found["discriminator_loss"]
        )
        return {"loss": loss, **found}

    def flops_per_token(self, length: int) -> float:
        large, small = self.discriminator.encoder.config, self.generator.encoder.config
        masked = masked_count(length, self.config.mask_rate) / length
        judged = masked if self.config.kind == "electra-15" else 1.0
        heads = judged * judging_flops(large) + masked * naming_flops(small, self.lexicon.size)
        return PASSES * (encoder_flops(large, length) + encoder_flops(small, length) + heads)

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"discriminator": self.discriminator, "generator": self.generator}


def judged_tallies(judged: Judged) -> Tensor:
    size = torch.full((1,), judged.scores.numel(), dtype=torch.float64, device=judged.scores.device)
    return torch.cat([size, judged.tallies])


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
