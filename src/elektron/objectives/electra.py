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
from torch import Tensor, nn

from elektron.data.tokenizer import Specials
from elektron.kernels.counters import elements, fold
from elektron.kernels.gpu import beside
from elektron.kernels.judging import Judged
from elektron.kernels.masking import Draws, corrupt, mask, masked_count, picked
from elektron.kernels.vocabulary import Spoken, speak
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import Embeddings, EncoderConfig
from elektron.model.heads import Discriminator, Generator

_SITES = 5
"""What a row has noise for: positions, kept tokens, samples, and dropout in the generator and the discriminator."""


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
    tallies: Tensor
    """[TALLIES] float64: sums over the batch, to be added up over steps and ranks; `summary` makes metrics of them."""
    scores: Tensor
    """[B, T] the discriminator's logits of "replaced"."""
    replaced: Tensor
    """[B, T] whether it is."""


TALLIES = (
    *("masked", "tokens", "generator_loss", "generator_hits", "sampled_hits"),
    *("discriminator_loss", "discriminator_hits", "flagged", "replaced", "caught"),
)


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
        config, specials = self.config, self.specials
        sites = torch.arange(_SITES, dtype=torch.int32, device=keys.device)[:, None]
        position_keys, keep_keys, sample_keys, *dropout_keys = site_keys = fold(keys, sites)
        generator_keys, discriminator_keys = dropout_keys if self.training else (None, None)
        # mask
        count = masked_count(original.shape[1], config.mask_rate)
        positions, targets, masked = mask(
            *(original, specials.cls, specials.sep, specials.mask, count, config.draws, config.keep_rate),
            *(position_keys, keep_keys),
        )
        # generate and sample
        with beside(masked, segments, positions, targets, site_keys):
            hidden = self.generator.encoder(masked, segments, keys=generator_keys)
            said = speak(
                self.generator.head(picked(hidden, positions)).flatten(0, 1),  # [B K, E]
                self.generator.table,
                self.generator.head.bias,
                targets.flatten(),
                config.temperature,
                not config.disallow_correct,
                elements(sample_keys, count).flatten(),
            )
        # label: a sample that is the original token is an original token
        corrupted, replaced = corrupt(original, positions, said.sampled)
        # discriminate
        judged = self.discriminator.judge(corrupted, segments, replaced, discriminator_keys)
        # weigh
        generator_loss = said.losses.sum()
        loss = (
            config.generator_weight * generator_loss / targets.numel()
            + config.discriminator_weight * judged.loss / replaced.numel()
        )
        tallies = _tallies(generator_loss, said, targets.flatten(), judged)
        return Outcome(loss, tallies, judged.scores, replaced)

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
def _tallies(generator_loss: Tensor, said: Spoken, targets: Tensor, judged: Judged) -> Tensor:
    counts = torch.stack([said.hits, said.sampled == targets]).sum(1)
    sizes = torch.full((2,), targets.numel(), dtype=torch.float64, device=targets.device)
    sizes[1:].fill_(judged.scores.numel())
    return torch.cat([sizes, generator_loss.double()[None], counts.double(), judged.tallies])
