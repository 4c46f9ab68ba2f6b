"""Two-stage training, an alternative of ELECTRA's paper (Clark et al., 2020, arXiv 2003.10555, section 3.2).

For the first half of the steps the generator alone learns masked language modelling. Then the discriminator's encoder
begins as a copy of the generator's, the generator is frozen, and the discriminator alone learns to detect its samples:

    first half   loss = generator_weight     * mean over masked tokens of  -log p_generator(original | masked)
    second half  loss = discriminator_weight * mean over all tokens of     BCE(discriminator(corrupted), is replaced)

The networks are of one size, and share nothing: a frozen generator's embeddings are frozen too. It drops out as it
samples, as ELECTRA's does. Without the copy (`inherits`) a discriminator that begins with a good generator's samples
may never leave the majority class.

Shapes in comments: B rows, T tokens of a row.
"""

import torch
from torch import Tensor

from elektron.kernels.masking import corrupt, masked_count
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import Embeddings, EncoderConfig
from elektron.model.heads import Discriminator, Generator
from elektron.objectives import proposing
from elektron.objectives.electra import JUDGED, discriminator_metrics, judged_tallies, judging_flops
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Objective, ObjectiveConfig, Outcome, Stage, noise_of
from elektron.objectives.proposing import Proposed, generator_metrics, naming_flops, propose

_GENERATING, _DETECTING = range(2)


class TwoStage(Objective):
    """Two networks of one size, of which one learns at a time."""

    tallies = (*proposing.TALLIES, *JUDGED)

    def __init__(self, shape: EncoderConfig, config: ObjectiveConfig, lexicon: Lexicon) -> None:
        super().__init__()
        self.config, self.lexicon = config, lexicon
        self.discriminator = Discriminator(shape, Embeddings(lexicon.size, shape))
        self.generator = Generator(shape, Embeddings(lexicon.size, shape))
        inherits = (("discriminator.encoder.", "generator.encoder."),) if config.inherits else ()
        self.stages = (Stage(0.5, ("generator.",)), Stage(0.5, ("discriminator.",), inherits))

    def forward(self, original: Tensor, segments: Tensor, keys: Tensor, progress: Tensor | float = 1.0) -> Outcome:
        noise = noise_of(keys, self.training)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.stage == _GENERATING):
            proposed = propose(self.generator, self.config, self.lexicon, original, segments, noise, progress)
        if self.stage == _GENERATING:
            loss = self.config.generator_weight * proposed.loss / proposed.targets.numel()
            nothing = proposed.tallies.new_zeros(len(JUDGED))
            return Outcome(loss, torch.cat([proposed.tallies, nothing]))
        return self._detect(original, segments, proposed, noise.encoder)

    def _detect(self, original: Tensor, segments: Tensor, proposed: Proposed, keys: Tensor | None) -> Outcome:
        corrupted, replaced = corrupt(original, proposed.positions, proposed.sampled)
        judged = self.discriminator.head.judge(self.discriminator.encoder(corrupted, segments, keys=keys), replaced)
        loss = self.config.discriminator_weight * judged.loss / judged.scores.numel()
        tallies = torch.cat([proposed.tallies, judged_tallies(judged)])
        return Outcome(loss, tallies, judged.scores, replaced, corrupted, proposed.positions)

    def summary(self, tallies: dict[str, float]) -> dict[str, float]:
        """The loss is the second stage's, once there is one."""
        found = generator_metrics(tallies)
        if not tallies["tokens"]:
            return {"loss": self.config.generator_weight * found["generator_loss"], **found}
        found |= discriminator_metrics(tallies)
        return {"loss": self.config.discriminator_weight * found["discriminator_loss"], **found}

    def flops_per_token(self, length: int) -> float:
        """The mean of the two stages: the generator learns in one and is only asked in the other, where the
        discriminator learns."""
        shape, masked = self.generator.encoder.config, masked_count(length, self.config.mask_rate) / length
        generator = encoder_flops(shape, length) + masked * naming_flops(shape, self.lexicon.size)
        discriminator = encoder_flops(shape, length) + judging_flops(shape)
        return (PASSES * generator + generator + PASSES * discriminator) / 2

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"discriminator": self.discriminator, "generator": self.generator}
