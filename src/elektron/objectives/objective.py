"""What every objective is: networks, a loss of a batch, what is counted of it, and what it costs.

One objective is one file. table.py has them all by their names, docs/objectives.md their equations and sources.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from elektron.kernels.counters import fold
from elektron.kernels.masking import Draws
from elektron.model.encoder import Encoder, EncoderConfig
from elektron.model.heads import Discriminator, Generator
from elektron.objectives.lexicon import Lexicon

Kind = Literal[
    "electra",
    "electra-15",
    "mlm",
    "replace-mlm",
    "all-tokens-mlm",
    "electric",
    "two-stage",
    "adversarial",
    "gumbel",
    "span",
    "corrective",
]
Masking = Literal["uniform", "whole-word", "span", "frequency"]
Source = Literal["masked", "two-tower", "uniform", "unigram", "tied", "frozen"]
Sharing = Literal["all-embeddings", "token-embeddings", "none", "gdes"]


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """What is learned from the text."""

    kind: Kind = "electra"
    """The objective; docs/objectives.md tells what each is."""
    mask_rate: float = 0.15
    """Share of a row's tokens that the generator fills in."""
    keep_rate: float = 0.0
    """Share of the chosen positions that show the generator the original, not [MASK]; the paper's code has 0.15."""
    draws: Draws = "without-replacement"
    """How positions are chosen; the paper's code draws with replacement."""
    masking: Masking = "uniform"
    """Which tokens are chosen: any, whole words, stretches, or rare ones more often."""
    rarity: float = 0.5
    """With masking by frequency: a token's chances are its frequency to the power of minus this."""
    temperature: float = 1.0
    """The generator's logits are divided by this when it samples; 0: it says its best guess."""
    first_temperature: float = 0.0
    """What the temperature begins with, to fall geometrically over the run; 0: it is the same throughout."""
    disallow_correct: bool = False
    """Never sample the original token."""
    equal: Literal["original", "replaced"] = "original"
    """What a sample that is the original token counts as; 'replaced' is a GAN's view."""
    sentence_weight: float = 0.0
    """Weight of telling by [CLS] whether any token of the row was replaced; a fifth of the rows is then left alone."""
    generator: Source = "masked"
    """Who proposes tokens: a small masked LM; two towers that read from both ends; nobody, tokens being drawn from all
    alike or by their frequency; the large encoder itself; or a network that was trained before (--init-generator)."""
    sharing: Sharing = "all-embeddings"
    """What generator and encoder share: all embeddings with their norm, the words', none; or gdes, the words', which
    stand still for the encoder and to which it adds differences."""
    generator_weight: float = 1.0
    """Weight of the generator's loss."""
    discriminator_weight: float = 50.0
    """Weight of the discriminator's loss."""
    generator_width: float = 0.25
    """Width, heads and feed-forward width of the generator, as a fraction of the discriminator's."""
    generator_layers: float = 1.0
    """Layers of the generator, as a fraction of the discriminator's."""
    span_mean: float = 3.0
    """Mean length of the stretches that are hidden as a whole, before the longest are cut."""
    span_longest: int = 6
    """Tokens of the longest stretch; a span objective's generator samples so many times in turn."""
    contrast_temperature: float = 1.0
    """What the likeness of two rows is divided by before rows are told apart."""
    contrast_weight: float = 1.0
    """Weight of the loss of telling rows apart."""
    inherits: bool = True
    """Two-stage: the discriminator begins as a copy of the generator; without the copy it may never learn anything."""
    gumbel_start: float = 2.0
    """Gumbel: temperature of the generator's soft samples when the run begins; it falls geometrically."""
    gumbel_end: float = 0.5
    """Gumbel: the same when the run ends."""

    def __post_init__(self) -> None:
        if not 0 < self.mask_rate < 1:
            raise ValueError(f"--objective.mask-rate lies between 0 and 1, not {self.mask_rate}")
        if not 0 <= self.keep_rate <= 1:
            raise ValueError(f"--objective.keep-rate lies in [0, 1], not {self.keep_rate}")
        if not self.temperature >= 0:
            raise ValueError(f"--objective.temperature must not be negative: {self.temperature}")
        if self.first_temperature and not (self.first_temperature > 0 and self.temperature > 0):
            raise ValueError("--objective.first-temperature falls from above 0 to a temperature above 0")
        if not self.span_mean >= 1:
            raise ValueError(f"--objective.span-mean is at least 1 token, not {self.span_mean}")
        if self.span_longest < 1:
            raise ValueError(f"--objective.span-longest is at least 1 token, not {self.span_longest}")
        if not self.contrast_temperature > 0:
            raise ValueError(f"--objective.contrast-temperature must be positive, not {self.contrast_temperature}")
        for name in ("gumbel_start", "gumbel_end"):
            if not getattr(self, name) > 0:
                raise ValueError(f"--objective.{name.replace('_', '-')} must be positive, not {getattr(self, name)}")


class Outcome(NamedTuple):
    """What one pass over a batch gives."""

    loss: Tensor
    """What is differentiated."""
    tallies: Tensor
    """[tallies] float64: sums over the batch, to be added up over steps and ranks; `summary` makes metrics of them."""
    scores: Tensor | None = None
    """[B, T] logits of "replaced", where there is a discriminator."""
    replaced: Tensor | None = None
    """[B, T] whether it is."""
    corrupted: Tensor | None = None
    """[B, T] the tokens that were judged, where there is one who tells which were replaced."""
    positions: Tensor | None = None
    """[B, K] where a generator was asked for them; scores are of these alone if they are as many."""


class Stage(NamedTuple):
    """A part of a run, with a schedule of its own. Parameters are told by how their names begin."""

    share: float = 1.0
    """Of the run's steps."""
    learns: tuple[str, ...] = ("",)
    """Which parameters change."""
    inherits: tuple[tuple[str, str], ...] = ()
    """Which begin as which others are."""


class Together(NamedTuple):
    """The rows of all ranks, of which some are ours."""

    rows: Tensor
    first: int
    """Where ours begin."""


def apart(rows: Tensor) -> Together:
    """Where there are no others, or they do not matter."""
    return Together(rows, 0)


class Objective(nn.Module, ABC):
    """Networks and their loss."""

    config: ObjectiveConfig
    lexicon: Lexicon
    tallies: tuple[str, ...]
    """Names of what a pass counts."""

    stages: tuple[Stage, ...] = (Stage(),)
    """What a run consists of."""
    stage: int = 0
    """Which of them it is in."""
    together: Callable[[Tensor], Together] = staticmethod(apart)
    """How rows of a part of the batch meet those of other ranks in training, with gradients: for losses that compare
    them."""

    @abstractmethod
    def forward(self, original: Tensor, segments: Tensor, keys: Tensor, progress: Tensor | float = 1.0) -> Outcome:
        """One pass over rows [B, T]; `keys` [B] are the rows' noise, `progress` is the share of the run that is over.
        Dropout is applied in training mode only."""

    @abstractmethod
    def summary(self, tallies: dict[str, float]) -> dict[str, float]:
        """Metrics out of summed tallies; "loss" is one of them."""

    @abstractmethod
    def flops_per_token(self, length: int) -> float:
        """Matrix FLOPs of a training step for each token of its rows of `length`."""

    @abstractmethod
    def networks(self) -> dict[str, Discriminator | Generator]:
        """What comes out of a run, by the names of their folders. The encoder of the first is the one to fine-tune."""

    @property
    def encoder(self) -> Encoder:
        return next(iter(self.networks().values())).encoder

    def encoders(self) -> list[Encoder]:
        return [module for module in self.modules() if isinstance(module, Encoder)]


class Noise(NamedTuple):
    """Keys [B] of a row's sites; None where nothing is to be dropped."""

    positions: Tensor
    keeps: Tensor
    samples: Tensor
    generator: Tensor | None
    encoder: Tensor | None
    sentences: Tensor
    units: Tensor
    crop: Tensor
    second: Tensor | None  # of an encoder that reads twice


def noise_of(keys: Tensor, is_training: bool) -> Noise:
    sites = torch.arange(len(Noise._fields), dtype=torch.int32, device=keys.device)[:, None]
    noise = Noise(*fold(keys, sites))
    return noise if is_training else noise._replace(generator=None, encoder=None, second=None)


def generator_shape(shape: EncoderConfig, config: ObjectiveConfig) -> EncoderConfig:
    """The generator's encoder: the large one's, scaled."""
    return replace(
        shape,
        width=round(shape.width * config.generator_width),
        heads=max(1, round(shape.heads * config.generator_width)),
        feedforward_width=round(shape.feedforward_width * config.generator_width),
        layers=max(1, round(shape.layers * config.generator_layers)),
    )
