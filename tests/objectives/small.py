"""A small model, a batch, and a corrupted row by the definitions: what tests of objectives begin with."""

from typing import Any

import torch

from elektron.data.tokenizer import Specials
from elektron.kernels.counters import row_keys
from elektron.kernels.masking import masked_count
from elektron.model.encoder import EncoderConfig
from elektron.model.heads import Generator
from elektron.model.initial import initialise
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import ObjectiveConfig
from elektron.objectives.table import build
from reference import electra as reference
from reference import hashing

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
SHAPE = EncoderConfig(
    layers=2,
    width=32,
    heads=4,
    feedforward_width=64,
    embedding_width=16,
    positions=24,
    dropout=0.0,
    attention_dropout=0.0,
)
VOCABULARY = 40
ROWS, LENGTH = 4, 20


def make_model(
    config: ObjectiveConfig, shape: EncoderConfig = SHAPE, lexicon: Lexicon | None = None
) -> Any:  # one test or another looks into any of them
    model = build(shape, config, lexicon or Lexicon(SPECIALS, VOCABULARY))
    initialise(model, 0)
    with torch.no_grad():  # away from the beginning, where all logits are nearly zero
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return model.eval()


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    original = torch.randint(5, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))
    original[:, 0], original[:, 9], original[:, -1] = SPECIALS.cls, SPECIALS.sep, SPECIALS.sep
    segments = (torch.arange(LENGTH) > 9).long().repeat(ROWS, 1)
    return original, segments


def keys_of(seed: int = 0, step: int = 11) -> torch.Tensor:
    return row_keys(seed, step, torch.arange(ROWS, dtype=torch.int32))


class Row:
    """One row of a batch, masked and filled in by a masked LM, token by token."""

    def __init__(
        self, config: ObjectiveConfig, generator: Generator, original: torch.Tensor, segments: torch.Tensor, key: int
    ) -> None:
        self.original, self.segments = original.tolist(), segments[None]
        candidates = [i for i, token in enumerate(self.original) if token not in (SPECIALS.cls, SPECIALS.sep)]
        count = masked_count(len(self.original), config.mask_rate)
        self.positions = reference.distinct_positions(candidates, count, hashing.fold(key, reference.POSITIONS))
        keeps = hashing.fold(key, reference.KEEP)
        self.masked = reference.masked_row(self.original, self.positions, config.keep_rate, SPECIALS.mask, keeps)
        logits = generator(torch.tensor([self.masked]), self.segments)[0].tolist()
        self.generator_losses = [reference.cross_entropy(logits[i], self.original[i]) for i in self.positions]
        self.samples = [
            reference.sampled_token(
                logits[position],
                config.temperature,
                self.original[position] if config.disallow_correct else None,
                hashing.fold(hashing.fold(key, reference.SAMPLE), number),
            )
            for number, position in enumerate(self.positions)
        ]
        self.corrupted = reference.corrupted_row(self.original, self.positions, self.samples)


def rows_of(config: ObjectiveConfig, generator: Generator, seed: int) -> list[Row]:
    """The rows of `batch(seed)` with the noise of `keys_of(seed)`."""
    original, segments = batch(seed)
    keys = [hashing.row_key(seed, 11, row) for row in range(ROWS)]
    return [Row(config, generator, *given) for given in zip(original, segments, keys, strict=True)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
