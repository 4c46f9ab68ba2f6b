"""ELECTRA with a generator that is annealed from maximum likelihood to the discriminator's own gradient, through
straight-through Gumbel-softmax samples (Jang et al., 2017, arXiv 1611.01144). ELECTRA's paper (Clark et al., 2020,
arXiv 2003.10555, appendix F) has REINFORCE alone; this is the other way past a discrete sample.

At each masked position, with Gumbel noise g and a temperature that falls geometrically over the run:

    soft = softmax((logits + g) / temperature),   sample = argmax(logits + g)
    vector of the sample in the discriminator's input = W[sample] + stopped(W)^T (soft - stopped(soft))

so the discriminator reads samples, and the generator hears what would have been read a little differently. With alpha,
the share of the run that is over, and L the discriminator's BCE summed over all tokens:

    the generator minimises      generator_weight * ((1 - alpha) * MLE - alpha * L / masked tokens)
    the discriminator minimises  discriminator_weight * L / all tokens

One backward pass through the discriminator serves both: its own gradient is turned round and rescaled where it leaves
for the soft samples. It is that of all its errors, for a sample is judged where it stands and heard everywhere else; it
is a mean over masked tokens, as MLE is, whatever the discriminator's weight. The word table learns from the
discriminator what the samples were, and nothing of the soft weights that multiply it. The reported loss is ELECTRA's.

Shapes in comments: B rows, T tokens of a row, K masked positions of a row, N = B K, E embedding width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.kernels.counters import elements, gumbel
from elektron.kernels.masking import corrupt, masked_count, picked
from elektron.kernels.vocabulary import Spoken
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import EncoderConfig
from elektron.model.heads import Discriminator, Generator, merged
from elektron.objectives import proposing
from elektron.objectives.electra import JUDGED, electra_metrics, judged_tallies, judging_flops
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.masking import hide
from elektron.objectives.objective import Objective, ObjectiveConfig, Outcome, generator_shape, noise_of
from elektron.objectives.proposing import naming_flops, shared_embeddings, tallies_of


class Gumbel(Objective):
    """A small network that learns ever less from the text and ever more from the large one's errors."""

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
        positions, targets, masked = hide(config, self.lexicon, original, noise)
        hidden = picked(self.generator.encoder(masked, segments, keys=noise.generator), positions)
        logits = self._logits(hidden)  # [N, V]
        noisy = logits + gumbel(elements(elements(noise.samples, positions.shape[1]).flatten(), self.lexicon.size))
        said = spoken(logits, noisy.detach(), targets.flatten())
        soft = (noisy / softness(config, progress)).softmax(-1)
        # discriminate
        corrupted, replaced = corrupt(original, positions, said.sampled.view_as(targets))
        table = self.discriminator.encoder.embeddings.table
        turn = progress * config.generator_weight * original.numel() / targets.numel() / config.discriminator_weight
        vectors = mixed(F.embedding(corrupted, table), soft, table, positions, turn)  # [B, T, E]
        seen = self.discriminator.encoder(vectors, segments, keys=noise.encoder)
        judged = self.discriminator.head.judge(seen, replaced)
        # weigh
        likelihood_loss = said.losses.sum()
        loss = (
            config.generator_weight * (1 - progress) * likelihood_loss / targets.numel()
            + config.discriminator_weight * judged.loss / original.numel()
        )
        tallies = torch.cat([tallies_of(likelihood_loss, said, targets), judged_tallies(judged)])
        return Outcome(loss, tallies, judged.scores, replaced, corrupted, positions)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Of the vocabulary, from states [B, K, D]: [N, V]."""
        table = self.generator.table
        features = self.generator.head(hidden).flatten(0, 1)
        return F.linear(features, table, self.generator.head.bias.to(table.dtype)).float()

    def summary(self, tallies: dict[str, float]) -> dict[str, float]:
        return electra_metrics(self.config, tallies)

    def flops_per_token(self, length: int) -> float:
        """With one product more over the vocabulary, from vectors' gradients to those of soft samples."""
        large, small = self.discriminator.encoder.config, self.generator.encoder.config
        masked, words = masked_count(length, self.config.mask_rate) / length, self.lexicon.size
        forward = encoder_flops(large, length) + encoder_flops(small, length) + judging_flops(large)
        return PASSES * (forward + masked * naming_flops(small, words)) + masked * 2 * small.embedding_width * words

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"discriminator": merged(self.discriminator), "generator": self.generator}


def softness(config: ObjectiveConfig, progress: Tensor | float) -> Tensor | float:
    """The temperature of the soft samples."""
    return config.gumbel_start * (config.gumbel_end / config.gumbel_start) ** progress


def spoken(logits: Tensor, noisy: Tensor, targets: Tensor) -> Spoken:
    """Losses of the targets [N], samples and hits, from logits [N, V] without noise and with it."""
    losses = F.cross_entropy(logits, targets, reduction="none")
    logits = logits.detach()
    hits = logits.gather(1, targets[:, None]).squeeze(1) == logits.amax(1)
    return Spoken(losses, noisy.argmax(1), hits)


def mixed(words: Tensor, soft: Tensor, table: Tensor, positions: Tensor, turn: Tensor | float) -> Tensor:
    """`words` [B, T, E] themselves. Their gradient goes on to them as it is, and to the soft samples [N, V] at the
    positions [B, K] as if these had mixed the table [V, E] there, times -`turn`; the table learns nothing of it."""
    return _Mixed.apply(words, soft, table.detach(), positions, turn)  # pyright: ignore[reportReturnType]


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch's has no type for what it keeps
        words: Tensor,
        soft: Tensor,
        table: Tensor,
        positions: Tensor,
        turn: Tensor | float,
    ) -> Tensor:
        ctx.save_for_backward(table, positions)
        ctx.turn, ctx.dtype = turn, soft.dtype
        return words.view_as(words)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (grad,) = gradients
        table, positions = ctx.saved_tensors
        of_soft = F.linear(picked(grad, positions).flatten(0, 1), table)  # [N, V]
        return grad, of_soft.to(ctx.dtype) * -ctx.turn, None, None, None
