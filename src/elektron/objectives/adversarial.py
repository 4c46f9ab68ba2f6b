"""Adversarial ELECTRA, an alternative of its paper (Clark et al., 2020, arXiv 2003.10555, section 3.2 and appendix F):
the generator does not learn what stood there, but to say what the discriminator misjudges.

A sample is discrete, so the discriminator's gradient does not reach the generator; its reward does (REINFORCE,
Williams, 1992). At each masked position, with a baseline that a linear score of the generator's state there learns:

    reward   = BCE(discriminator(corrupted), is replaced)                       at the position, a mere number
    baseline = w . state + b                                                    learns no state
    loss     = generator_weight     * mean over masked tokens of  (reward - baseline) * -log p_generator(sample)
             +                        mean over masked tokens of  (baseline - reward)^2
             + discriminator_weight * mean over all tokens of     BCE(discriminator(corrupted), is replaced)

A sample that earns more than expected becomes likelier. It is credited with the loss at its own place alone. The
generator's likelihood is measured, and not learned.

Shapes in comments: B rows, T tokens of a row, K masked positions of a row, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elektron.kernels.counters import elements
from elektron.kernels.masking import corrupt, masked_count, picked
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import EncoderConfig
from elektron.model.heads import Discriminator, Generator, merged
from elektron.objectives import proposing
from elektron.objectives.electra import JUDGED, discriminator_metrics, judged_tallies, judging_flops
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.masking import hide
from elektron.objectives.objective import Objective, ObjectiveConfig, Outcome, generator_shape, noise_of
from elektron.objectives.proposing import generator_metrics, named, naming_flops, shared_embeddings, tallies_of

REWARDED = ("reward", "policy_loss", "baseline_loss")


class BaselineHead(nn.Module):
    """Hidden states to the reward that is to be expected there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.score(hidden).squeeze(-1).float()  # [..., D] -> [...]


class Adversarial(Objective):
    """A small network that is paid for errors, and a large one that makes as few as it can."""

    tallies = (*proposing.TALLIES, *JUDGED, *REWARDED)

    def __init__(self, shape: EncoderConfig, config: ObjectiveConfig, lexicon: Lexicon) -> None:
        super().__init__()
        self.config, self.lexicon = config, lexicon
        large, small = shared_embeddings(shape, config, lexicon.size)
        self.discriminator = Discriminator(shape, large)
        self.generator = Generator(generator_shape(shape, config), small)
        self.baseline = BaselineHead(self.generator.encoder.config.width)

    def forward(self, original: Tensor, segments: Tensor, keys: Tensor, progress: Tensor | float = 1.0) -> Outcome:
        config, noise = self.config, noise_of(keys, self.training)
        # mask, generate and sample
        positions, targets, masked = hide(config, self.lexicon, original, noise)
        of_samples = elements(noise.samples, positions.shape[1])
        hidden = picked(self.generator.encoder(masked, segments, keys=noise.generator), positions)  # [B, K, D]
        with torch.no_grad():
            said = named(self.generator, hidden, targets, config, of_samples)
        sampled = said.sampled.view_as(targets)
        # discriminate
        corrupted, replaced = corrupt(original, positions, sampled)
        seen = self.discriminator.encoder(corrupted, segments, keys=noise.encoder)
        judged = self.discriminator.head.judge(seen, replaced)
        # reward
        reward = rewards(judged.scores, replaced, positions)  # [B, K]
        expected = self.baseline(hidden.detach())
        surprisal = named(self.generator, hidden, sampled, config, of_samples).losses.view_as(reward)
        policy_loss = ((reward - expected.detach()) * surprisal).sum()
        baseline_loss = (expected - reward).square().sum()
        # weigh
        loss = (
            config.generator_weight * policy_loss / targets.numel()
            + baseline_loss / targets.numel()
            + config.discriminator_weight * judged.loss / judged.scores.numel()
        )
        earned = torch.stack([reward.sum(), policy_loss, baseline_loss]).detach().double()
        known = tallies_of(said.losses.sum(), said, targets)
        tallies = torch.cat([known, judged_tallies(judged), earned])
        return Outcome(loss, tallies, judged.scores, replaced, corrupted, positions)

    def summary(self, tallies: dict[str, float]) -> dict[str, float]:
        config, found = self.config, generator_metrics(tallies) | discriminator_metrics(tallies)
        reward, policy_loss, baseline_loss = (tallies[name] / tallies["masked"] for name in REWARDED)
        loss = (
            config.generator_weight * policy_loss
            + baseline_loss
            + config.discriminator_weight * found["discriminator_loss"]
        )
        return {"loss": loss, **found, "reward": reward, "baseline_loss": baseline_loss}

    def flops_per_token(self, length: int) -> float:
        """The generator's head is asked twice: for a sample, and for its chances."""
        large, small = self.discriminator.encoder.config, self.generator.encoder.config
        naming = masked_count(length, self.config.mask_rate) / length * naming_flops(small, self.lexicon.size)
        encoders = encoder_flops(large, length) + encoder_flops(small, length)
        return PASSES * (encoders + judging_flops(large) + naming) + naming

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"discriminator": merged(self.discriminator), "generator": self.generator}


def rewards(scores: Tensor, replaced: Tensor, positions: Tensor) -> Tensor:
    """The discriminator's loss at the positions [B, K], from its scores and the truth [B, T], without gradient."""
    scores, truth = scores.detach().gather(1, positions), replaced.gather(1, positions)
    return F.binary_cross_entropy_with_logits(scores, truth.to(scores.dtype), reduction="none")
