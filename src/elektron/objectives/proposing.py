"""The first half of most objectives: some tokens of a row are hidden, and a generator proposes others for them.

Shapes in comments: B rows, T tokens of a row, K masked positions of a row, N = B K, E embedding width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from elektron.kernels.counters import elements
from elektron.kernels.gpu import beside
from elektron.kernels.masking import Masked, mask, masked_count, picked
from elektron.kernels.vocabulary import Spoken, speak
from elektron.model.encoder import EncoderConfig
from elektron.model.heads import Generator
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Noise, ObjectiveConfig

TALLIES = ("masked", "generator_loss", "generator_hits", "sampled_hits")


class Proposed(NamedTuple):
    """What a generator says."""

    positions: Tensor  # [B, K]
    targets: Tensor  # [B, K] the tokens that were there
    sampled: Tensor  # [B, K]
    loss: Tensor  # [] the sum of -log p(target)
    tallies: Tensor  # [TALLIES] float64


def hide(config: ObjectiveConfig, lexicon: Lexicon, original: Tensor, noise: Noise) -> Masked:
    """Rows [B, T] with [MASK] at the positions that were chosen."""
    specials, count = lexicon.specials, masked_count(original.shape[1], config.mask_rate)
    return mask(
        *(original, specials.cls, specials.sep, specials.mask, count, config.draws, config.keep_rate),
        *(noise.positions, noise.keeps),
    )


def propose(
    generator: Generator, config: ObjectiveConfig, lexicon: Lexicon, original: Tensor, segments: Tensor, noise: Noise
) -> Proposed:
    """Mask, generate and sample. Samples carry no gradient."""
    positions, targets, masked = hide(config, lexicon, original, noise)
    keys = elements(noise.samples, positions.shape[1])
    with beside(masked, segments, positions, targets, keys, *(() if noise.generator is None else (noise.generator,))):
        hidden = generator.encoder(masked, segments, keys=noise.generator)
        said = named(generator, picked(hidden, positions), targets, config, keys)
    loss = said.losses.sum()
    return Proposed(positions, targets, said.sampled.view_as(targets), loss, tallies_of(loss, said, targets))


def named(generator: Generator, hidden: Tensor, targets: Tensor, config: ObjectiveConfig, keys: Tensor) -> Spoken:
    """What the head makes of states [B, K, D]: losses of the targets [B, K], samples and hits, [N] each."""
    return speak(
        generator.head(hidden).flatten(0, 1),  # [N, E]
        generator.table,
        generator.head.bias,
        targets.flatten(),
        config.temperature,
        not config.disallow_correct,
        keys.flatten(),
    )


@torch.no_grad()
def tallies_of(loss: Tensor, said: Spoken, targets: Tensor) -> Tensor:
    counts = torch.stack([said.hits, said.sampled == targets.flatten()]).sum(1)
    size = torch.full((1,), targets.numel(), dtype=torch.float64, device=targets.device)
    return torch.cat([size, loss.double()[None], counts.double()])


def generator_metrics(tallies: dict[str, float]) -> dict[str, float]:
    masked = tallies["masked"]
    return {
        "generator_loss": tallies["generator_loss"] / masked,
        "generator_accuracy": tallies["generator_hits"] / masked,
        "sampled_accuracy": tallies["sampled_hits"] / masked,
    }


def naming_flops(shape: EncoderConfig, words: int) -> float:
    """Forward FLOPs of a head over the vocabulary for a token that is named."""
    return 2 * shape.embedding_width * (shape.width + words)
