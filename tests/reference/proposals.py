"""What a generator is given and what it draws, row by row from the definitions."""

from torch import Tensor

from elektron.data.tokenizer import Specials
from elektron.objectives.objective import ObjectiveConfig
from reference import electra, hashing

CALL = 11
"""The step whose noise is drawn."""


def gaps(
    original: Tensor, config: ObjectiveConfig, specials: Specials, count: int, seed: int
) -> tuple[list[list[int]], list[list[int]]]:
    """The positions that are chosen in each row, and the rows with [MASK] there."""
    chosen, masked = [], []
    for number, row in enumerate(original.tolist()):
        key = hashing.row_key(seed, CALL, number)
        candidates = [i for i, token in enumerate(row) if token not in (specials.cls, specials.sep)]
        distinct = config.draws == "without-replacement"
        choose = electra.distinct_positions if distinct else electra.repeated_positions
        chosen.append(choose(candidates, count, hashing.fold(key, electra.POSITIONS)))
        masked.append(
            electra.masked_row(row, chosen[-1], config.keep_rate, specials.mask, hashing.fold(key, electra.KEEP))
        )
    return chosen, masked


def sample_key(seed: int, row: int, number: int) -> int:
    """The noise of the sample at a row's `number`-th masked position."""
    return hashing.fold(hashing.fold(hashing.row_key(seed, CALL, row), electra.SAMPLE), number)


def samples(logits: Tensor, positions: list[list[int]], seed: int) -> list[list[int]]:
    """A token for each position, from logits [B, T, V] of every token."""
    return [
        [
            electra.sampled_token(logits[row, position].tolist(), 1.0, None, sample_key(seed, row, number))
            for number, position in enumerate(of_row)
        ]
        for row, of_row in enumerate(positions)
    ]


def corrupted(original: Tensor, positions: list[list[int]], sampled: list[list[int]]) -> list[list[int]]:
    return [electra.corrupted_row(*parts) for parts in zip(original.tolist(), positions, sampled, strict=True)]
