"""Which tokens are hidden: exactly K, by words, stretches or rarity."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elektron.kernels.masking import masked_count
from elektron.objectives.lexicon import Lexicon, lexicon_of
from elektron.objectives.masking import hide
from elektron.objectives.objective import ObjectiveConfig, noise_of
from objectives.small import SPECIALS, keys_of
from reference import hashing
from reference.electra import KEEP, POSITIONS
from reference.proposals import CALL

SIZE = 30


def make_lexicon(seed: int = 0) -> Lexicon:
    draw = np.random.default_rng(seed)
    return Lexicon(SPECIALS, SIZE, torch.from_numpy(draw.random(SIZE) < 0.4), draw.integers(0, 1000, SIZE))


def rows_of(draw: np.random.Generator, length: int) -> torch.Tensor:
    rows = torch.from_numpy(draw.integers(5, SIZE, (3, length)))
    rows[:, 0] = SPECIALS.cls
    rows[:, -1] = SPECIALS.sep
    rows[:, int(draw.integers(1, length - 1))] = SPECIALS.sep
    return rows


@given(
    st.sampled_from(["whole-word", "span", "frequency"]),
    st.integers(8, 40),
    st.floats(0.05, 0.6),
    st.sampled_from([0.0, 0.4]),
    st.integers(0, 2**16),
)
@settings(max_examples=80, deadline=None)
def test_exactly_k_ordinary_tokens_are_hidden(masking, length, rate, keep_rate, seed):
    rows, lexicon = rows_of(np.random.default_rng(seed), length), make_lexicon(seed)
    config = ObjectiveConfig(masking=masking, mask_rate=rate, keep_rate=keep_rate)
    noise = noise_of(keys_of(seed, 3), False)
    positions, targets, masked = hide(config, lexicon, rows, noise)
    count = masked_count(length, rate)
    assert positions.shape == (3, count)
    assert (positions.diff(dim=1) > 0).all()
    assert torch.equal(targets, rows.gather(1, positions))
    ordinary = (rows != SPECIALS.cls) & (rows != SPECIALS.sep)
    assert ordinary.gather(1, positions).sum(1).tolist() == [min(count, int(n)) for n in ordinary.sum(1)]
    for row in range(3):
        key = hashing.fold(hashing.row_key(seed, CALL, row), KEEP)
        hidden = {
            place
            for number, place in enumerate(positions[row].tolist())
            if hashing.uniform(hashing.fold(key, number)) >= keep_rate
        }
        assert masked[row].tolist() == [
            SPECIALS.mask if place in hidden else token for place, token in enumerate(rows[row].tolist())
        ]


@given(st.integers(8, 40), st.floats(0.05, 0.6), st.integers(0, 2**16))
@settings(max_examples=50, deadline=None)
def test_words_are_hidden_whole(length, rate, seed):
    """All but one word of a row are hidden with all their tokens, or with none."""
    rows, lexicon = rows_of(np.random.default_rng(seed), length), make_lexicon(seed)
    config = ObjectiveConfig(masking="whole-word", mask_rate=rate)
    noise = noise_of(keys_of(seed, 3), False)
    positions = hide(config, lexicon, rows, noise).positions
    for row, places in zip(rows.tolist(), positions.tolist(), strict=True):
        words: list[list[int]] = []
        for place, token in enumerate(row):
            is_special = token in (SPECIALS.cls, SPECIALS.sep)
            goes_on = lexicon.continues[token] and not is_special and row[place - 1] not in (SPECIALS.cls, SPECIALS.sep)
            if goes_on and words:
                words[-1].append(place)
            else:
                words.append([place])
        shares = [len(set(word) & set(places)) / len(word) for word in words]
        assert sum(0 < share < 1 for share in shares) <= 1


@pytest.mark.parametrize("rarity", [0.0, 0.5, 1.0])
def test_rare_tokens_are_chosen_by_their_weights(rarity):
    """The first of exponential races, row by row from the definition; and over many rows, in the right proportion."""
    lexicon = Lexicon(SPECIALS, SIZE, None, np.array([0] * 5 + [99, 899] + [0] * (SIZE - 7)))
    config = ObjectiveConfig(masking="frequency", mask_rate=0.05, rarity=rarity)
    rows = torch.tensor([[SPECIALS.cls, *[5, 6] * 9, SPECIALS.sep]]).repeat(4000, 1)
    positions = hide(config, lexicon, rows, noise_of(keys_of(1, 4000), False)).positions
    assert positions.shape == (4000, 1)
    for row in range(20):
        key = hashing.fold(hashing.row_key(1, CALL, row), POSITIONS)
        times = {
            place: -math.log(hashing.uniform(hashing.fold(key, place)))
            * lexicon.frequencies[rows[row, place]].item() ** rarity
            for place in range(1, 19)
        }
        assert positions[row].item() == min(times, key=lambda place: times[place])
    rare = (rows.gather(1, positions) == 5).double().mean().item()
    weights = 100.0**-rarity, 900.0**-rarity
    assert rare == pytest.approx(weights[0] / sum(weights), abs=0.03)


def test_what_a_tokenizer_tells_of_words(small_tokenizer):
    tokenizer = small_tokenizer
    lexicon = lexicon_of(tokenizer, np.arange(tokenizer.vocab_size))
    tokens = tokenizer.tokens(range(tokenizer.vocab_size))
    assert lexicon.continues.tolist() == [token.startswith("##") for token in tokens]
    assert lexicon.frequencies.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert lexicon.frequencies.argmax() == tokenizer.vocab_size - 1
