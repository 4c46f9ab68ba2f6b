"""The first half of most objectives: some tokens of a row are hidden, and a generator proposes others for them.

    masked, tied, frozen    a masked LM reads the row with gaps: a small one, the large encoder itself, or a small one
                            that learns nothing any more (Fast-ELECTRA: Dong et al., 2023, arXiv 2310.07347)
    two-tower               two causal networks read the row itself from both ends, up to the gap
    uniform, unigram        nobody reads anything: tokens are drawn from all alike, or by their frequency

Shapes in comments: B rows, T tokens of a row, K masked positions of a row, N = B K, E embedding width, V vocabulary.
"""

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from elektron.kernels.counters import elements, uniform
from elektron.kernels.gpu import beside
from elektron.kernels.masking import masked_count, picked
from elektron.kernels.vocabulary import Spoken, speak
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import Embeddings, Encoder, EncoderConfig
from elektron.model.heads import Discriminator, Generator, Network, merged
from elektron.model.two_tower import TwoTower
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.masking import hide
from elektron.objectives.objective import Noise, ObjectiveConfig, Stage, generator_shape

TALLIES = ("masked", "generator_loss", "generator_hits", "sampled_hits")
Proposer = Generator | TwoTower | None
"""None where tokens are drawn without reading."""


class Proposed(NamedTuple):
    """What a generator says."""

    positions: Tensor  # [B, K]
    targets: Tensor  # [B, K] the tokens that were there
    sampled: Tensor  # [B, K]
    loss: Tensor  # [] the sum of -log p(target)
    tallies: Tensor  # [TALLIES] float64


def shared_embeddings(shape: EncoderConfig, config: ObjectiveConfig, size: int) -> tuple[Embeddings, Embeddings]:
    """The large encoder's, and the generator's."""
    if config.sharing == "gdes":
        small = Embeddings(size, shape)
        return Embeddings(size, shape, beneath=small.word), small
    large = Embeddings(size, shape)
    if config.sharing == "all-embeddings":
        return large, large
    return large, Embeddings(size, shape, large.word if config.sharing == "token-embeddings" else None)


def make_proposer(shape: EncoderConfig, config: ObjectiveConfig, embeddings: Embeddings, large: Encoder) -> Proposer:
    """The generator that the config asks for; `large` is the encoder that one may be tied to."""
    if config.generator in ("uniform", "unigram"):
        return None
    if config.generator == "tied":
        return Generator(shape, embeddings, large)
    small = generator_shape(shape, config)
    return TwoTower(small, embeddings) if config.generator == "two-tower" else Generator(small, embeddings)


def stages_with(config: ObjectiveConfig, *learns: str) -> tuple[Stage, ...]:
    """One stage, in which all learn, or all but a frozen generator."""
    return (Stage(learns=learns),) if config.generator == "frozen" else (Stage(),)


def with_generator(name: str, network: Network, generator: Proposer) -> dict[str, Discriminator | Generator]:
    """What comes out of a run: the network, and the generator if it is one that others can read."""
    found: dict[str, Discriminator | Generator] = {name: merged(network)}
    return found | ({"generator": generator} if isinstance(generator, Generator) else {})


def propose(
    generator: Proposer,
    config: ObjectiveConfig,
    lexicon: Lexicon,
    original: Tensor,
    segments: Tensor,
    noise: Noise,
    progress: Tensor | float = 1.0,
) -> Proposed:
    """Mask, generate and sample. Samples carry no gradient."""
    positions, targets, masked = hide(config, lexicon, original, noise)
    keys = elements(noise.samples, positions.shape[1])
    if generator is None:
        said = _drawn(config, lexicon, targets.flatten(), keys.flatten())
    else:
        given = masked, original, segments, positions, targets, keys
        dropped = () if noise.generator is None else (noise.generator,)
        # two backward passes that add to the same weights do not run side by side
        with beside(*given, *dropped) if config.generator != "tied" else nullcontext(), _if_learning(config):
            hidden = _read(generator, original, masked, segments, noise.generator)
            said = named(generator, picked(hidden, positions), targets, config, keys, progress)
    loss = said.losses.sum()
    return Proposed(positions, targets, said.sampled.view_as(targets), loss, tallies_of(loss, said, targets))


def chances(
    generator: Proposer,
    config: ObjectiveConfig,
    lexicon: Lexicon,
    original: Tensor,
    segments: Tensor,
    noise: Noise,
    tokens: Tensor,
) -> Tensor:
    """log p(token) where the same noise hides tokens of the rows, of others [B, K] in their place; at a temperature of
    one, whatever it is when they are sampled."""
    positions, _, masked = hide(config, lexicon, original, noise)
    keys = elements(noise.samples, positions.shape[1])
    if generator is None:
        return -_drawn(config, lexicon, tokens.flatten(), keys.flatten()).losses.view_as(tokens)
    hidden = _read(generator, original, masked, segments, noise.generator)
    return -named(generator, picked(hidden, positions), tokens, config, keys).losses.view_as(tokens)


def _read(
    generator: Generator | TwoTower, original: Tensor, masked: Tensor, segments: Tensor, keys: Tensor | None
) -> Tensor:
    """States [B, T, D] of whom the gaps are named by."""
    if isinstance(generator, TwoTower):
        return generator.states(original, segments, keys)
    return generator.encoder(masked, segments, keys=keys)


def _if_learning(config: ObjectiveConfig) -> torch.no_grad | nullcontext[None]:
    return torch.no_grad() if config.generator == "frozen" else nullcontext()


def named(
    generator: Generator | TwoTower,
    hidden: Tensor,
    targets: Tensor,
    config: ObjectiveConfig,
    keys: Tensor,
    progress: Tensor | float = 1.0,
) -> Spoken:
    """What the head makes of states [B, K, D]: losses of the targets [B, K], samples and hits, [N] each."""
    return speak(
        generator.head(hidden).flatten(0, 1),  # [N, E]
        generator.table,
        generator.head.bias,
        targets.flatten(),
        temperature_at(config, progress),
        not config.disallow_correct,
        keys.flatten(),
    )


def temperature_at(config: ObjectiveConfig, progress: Tensor | float) -> Tensor | float:
    if not config.first_temperature:
        return config.temperature
    return config.temperature * (config.first_temperature / config.temperature) ** (1.0 - progress)


def _drawn(config: ObjectiveConfig, lexicon: Lexicon, targets: Tensor, keys: Tensor) -> Spoken:
    """Tokens [N] without a look at the row. A forbidden one is cut out of the interval that is drawn from."""
    shares = lexicon.frequencies if config.generator == "unigram" else torch.full_like(lexicon.frequencies, 1.0)
    shares = shares.double() / shares.double().sum()
    ends = shares.cumsum(0)
    draw = uniform(keys).double() * ends[-1]
    share, end = shares[targets], ends[targets]
    if config.disallow_correct:
        draw = draw * (1.0 - share)
        draw = torch.where(draw >= end - share, draw + share, draw)
    sampled = torch.searchsorted(ends, draw, right=True).clamp(max=lexicon.size - 1)
    return Spoken(-share.log().float(), sampled, share == shares.max())


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


def naming_flops(shape: EncoderConfig, words: int, towers: int = 1) -> float:
    """Forward FLOPs of a head over the vocabulary for a token that is named."""
    return 2 * shape.embedding_width * (towers * shape.width + words)


def proposing_flops(generator: Proposer, config: ObjectiveConfig, length: int, words: int) -> float:
    """FLOPs of a step a token: forward alone where nothing is learned."""
    if generator is None:
        return 0.0
    towers = 2 if isinstance(generator, TwoTower) else 1
    shape = generator.left.config if isinstance(generator, TwoTower) else generator.encoder.config
    masked = masked_count(length, config.mask_rate) / length
    forward = towers * encoder_flops(shape, length) + masked * naming_flops(shape, words, towers)
    return (1 if config.generator == "frozen" else PASSES) * forward
