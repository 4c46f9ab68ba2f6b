"""ELECTRA: replaced token detection (Clark et al., 2020, arXiv 2003.10555).

Some tokens of a row are masked; a small generator fills the gaps with samples of its own; the discriminator tells for
every token whether it is the original. Both learn at once:

    loss = generator_weight     * mean over masked tokens of  -log p_generator(original | masked)
         + discriminator_weight * mean over all tokens of     BCE(discriminator(corrupted), corrupted != original)

The samples carry no gradient: the generator learns by maximum likelihood and is not rewarded for fooling anyone.
Shapes in comments: B rows, T tokens of a row, K masked positions of a row, D generator width.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elektron.data.tokenizer import Specials
from elektron.kernels.counters import elements, fold, uniform
from elektron.kernels.vocabulary import Spoken, speak
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import Embeddings, EncoderConfig
from elektron.model.heads import Discriminator, Generator
from elektron.objectives.masking import Draws, choose, covered, masked_count, place

_POSITIONS, _KEEP, _SAMPLE, _GENERATOR, _DISCRIMINATOR = range(5)


@dataclass(frozen=True, kw_only=True)
class ElectraConfig:
    """The objective."""

    mask_rate: float = 0.15
    """Share of a row's tokens that the generator fills in."""
    keep_rate: float = 0.0
    """Share of the chosen positions that show the generator the original, not [MASK]; the paper's code has 0.15."""
    draws: Draws = "without-replacement"
    """How positions are chosen; the paper's code draws with replacement."""
    temperature: float = 1.0
    """The generator's logits are divided by this when it samples."""
    disallow_correct: bool = False
    """Never sample the original token."""
    generator_weight: float = 1.0
    """Weight of the generator's loss."""
    discriminator_weight: float = 50.0
    """Weight of the discriminator's loss."""
    generator_width: float = 0.25
    """Width, heads and feed-forward width of the generator, as a fraction of the discriminator's."""
    generator_layers: float = 1.0
    """Layers of the generator, as a fraction of the discriminator's."""

    def __post_init__(self) -> None:
        if not 0 < self.mask_rate < 1:
            raise ValueError(f"--objective.mask-rate lies between 0 and 1, not {self.mask_rate}")
        if not 0 <= self.keep_rate <= 1:
            raise ValueError(f"--objective.keep-rate lies in [0, 1], not {self.keep_rate}")
        if not self.temperature > 0:
            raise ValueError(f"--objective.temperature must be positive, not {self.temperature}")


class Outcome(NamedTuple):
    """What one pass over a batch gives."""

    loss: Tensor
    """What is differentiated."""
    tallies: dict[str, Tensor]
    """Sums over the batch, to be added up over steps and ranks; `summary` makes metrics of them."""
    scores: Tensor
    """[B, T] the discriminator's logits of "replaced"."""
    replaced: Tensor
    """[B, T] whether it is."""


class Electra(nn.Module):
    """The two networks, with one set of embeddings, and their loss."""

    def __init__(self, shape: EncoderConfig, config: ElectraConfig, vocab_size: int, specials: Specials) -> None:
        super().__init__()
        self.config, self.specials = config, specials
        embeddings = Embeddings(vocab_size, shape)
        self.discriminator = Discriminator(shape, embeddings)
        self.generator = Generator(generator_shape(shape, config), embeddings)

    def forward(self, original: Tensor, segments: Tensor, keys: Tensor) -> Outcome:
        """One pass over rows [B, T]; `keys` [B] are the rows' noise. Dropout is applied in training mode only."""
        config, length = self.config, original.shape[1]
        generator_keys, discriminator_keys = (
            fold(keys, site) if self.training else None for site in (_GENERATOR, _DISCRIMINATOR)
        )
        # mask
        count = masked_count(length, config.mask_rate)
        candidates = (original != self.specials.cls) & (original != self.specials.sep)
        positions = choose(candidates, count, config.draws, fold(keys, _POSITIONS))  # [B, K]
        targets = original.gather(1, positions)
        hides = uniform(elements(fold(keys, _KEEP), count)) >= config.keep_rate
        masked = original.masked_fill(covered(positions, hides, length), self.specials.mask)
        # generate and sample
        hidden = self.generator.encoder(masked, segments, keys=generator_keys)
        hidden = hidden.gather(1, positions[..., None].expand(-1, -1, hidden.shape[-1]))  # [B, K, D]
        said = speak(
            self.generator.head(hidden).flatten(0, 1),
            self.generator.table,
            self.generator.head.bias,
            targets.flatten(),
            config.temperature,
            not config.disallow_correct,
            elements(fold(keys, _SAMPLE), count).flatten(),
        )
        corrupted = place(original, positions, said.sampled.view_as(targets))
        # label: a sample that is the original token is an original token
        replaced = corrupted != original
        # discriminate
        scores = self.discriminator(corrupted, segments, keys=discriminator_keys).float()  # [B, T]
        # weigh
        generator_loss = said.losses.sum()
        discriminator_loss = F.binary_cross_entropy_with_logits(scores, replaced.float(), reduction="sum")
        loss = (
            config.generator_weight * generator_loss / targets.numel()
            + config.discriminator_weight * discriminator_loss / replaced.numel()
        )
        tallies = _tallies(generator_loss, discriminator_loss, targets.flatten(), said, scores, replaced)
        return Outcome(loss, tallies, scores.detach(), replaced)

    def summary(self, tallies: dict[str, float]) -> dict[str, float]:
        """Metrics out of summed tallies."""
        masked, tokens = tallies["masked"], tallies["tokens"]
        generator_loss, discriminator_loss = tallies["generator_loss"] / masked, tallies["discriminator_loss"] / tokens
        return {
            "loss": self.config.generator_weight * generator_loss
            + self.config.discriminator_weight * discriminator_loss,
            "generator_loss": generator_loss,
            "generator_accuracy": tallies["generator_hits"] / masked,
            "sampled_accuracy": tallies["sampled_hits"] / masked,
            "discriminator_loss": discriminator_loss,
            "discriminator_accuracy": tallies["discriminator_hits"] / tokens,
            "discriminator_precision": tallies["caught"] / max(1.0, tallies["flagged"]),
            "discriminator_recall": tallies["caught"] / max(1.0, tallies["replaced"]),
            "replaced_rate": tallies["replaced"] / tokens,
        }

    def flops_per_token(self, length: int) -> float:
        """Matrix FLOPs of a training step for each token of its rows of `length`."""
        large, small = self.discriminator.encoder.config, self.generator.encoder.config
        vocab_size, embedding_width = self.discriminator.encoder.embeddings.word.weight.shape
        masked = masked_count(length, self.config.mask_rate) / length
        heads = 2 * large.width * (large.width + 1) + masked * 2 * embedding_width * (small.width + vocab_size)
        return PASSES * (encoder_flops(large, length) + encoder_flops(small, length) + heads)


def generator_shape(shape: EncoderConfig, config: ElectraConfig) -> EncoderConfig:
    """The generator's encoder: the discriminator's, scaled."""
    return replace(
        shape,
        width=round(shape.width * config.generator_width),
        heads=max(1, round(shape.heads * config.generator_width)),
        feedforward_width=round(shape.feedforward_width * config.generator_width),
        layers=max(1, round(shape.layers * config.generator_layers)),
    )


@torch.no_grad()
def _tallies(
    generator_loss: Tensor, discriminator_loss: Tensor, targets: Tensor, said: Spoken, scores: Tensor, replaced: Tensor
) -> dict[str, Tensor]:
    flagged = scores > 0
    sums = {
        "generator_loss": generator_loss,
        "masked": torch.full_like(generator_loss, targets.numel()),
        "generator_hits": said.hits.sum(),
        "sampled_hits": (said.sampled == targets).sum(),
        "discriminator_loss": discriminator_loss,
        "tokens": torch.full_like(discriminator_loss, replaced.numel()),
        "discriminator_hits": (flagged == replaced).sum(),
        "flagged": flagged.sum(),
        "replaced": replaced.sum(),
        "caught": (flagged & replaced).sum(),
    }
    return {name: value.detach().double() for name, value in sums.items()}
