import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from elektron.kernels.counters import row_keys
from elektron.kernels.masking import choose
from elektron.objectives.units import random_begins, stretches
from reference import hashing
from reference import units as reference


@st.composite
def rows(draw):
    """A seed, some rows' candidates and begins, and how many positions."""
    length, size = draw(st.integers(2, 40)), draw(st.integers(1, 3))
    tables = st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=size, max_size=size)
    return draw(st.integers(0, 2**40)), draw(tables), draw(tables), draw(st.integers(1, length))


def keys_of(seed: int, count: int) -> torch.Tensor:
    return row_keys(seed, 3, torch.arange(count, dtype=torch.int32))


@given(rows())
@settings(max_examples=200, deadline=None)
def test_positions_are_the_reference(given):
    seed, candidates, begins, count = given
    found = stretches(torch.tensor(candidates), torch.tensor(begins), count, keys_of(seed, len(candidates)))
    for row, positions in enumerate(found.tolist()):
        key = hashing.row_key(seed, 3, row)
        assert positions == reference.stretches(candidates[row], begins[row], count, key)


@given(rows())
@settings(max_examples=200, deadline=None)
def test_positions_are_whole_units_but_for_one(given):
    """Exactly as many as asked for, each once and in order; what is no candidate only where candidates are too few."""
    seed, candidates, begins, count = given
    found = stretches(torch.tensor(candidates), torch.tensor(begins), count, keys_of(seed, len(candidates)))
    assert found.shape == (len(candidates), count)
    for row, positions in enumerate(found.tolist()):
        assert positions == sorted(set(positions))
        ordinary = sum(candidates[row])
        assert sum(candidates[row][place] for place in positions) == min(count, ordinary)
        units = [[place in positions for place in unit] for unit in reference.units(candidates[row], begins[row])]
        cut = [unit for unit in units if any(unit) and not all(unit)]
        assert len(cut) <= 1
        assert all(unit == sorted(unit, reverse=True) for unit in cut), "the first tokens of the last unit are taken"


@given(rows(), st.floats(1, 8), st.integers(1, 7))
@settings(max_examples=200, deadline=None)
def test_random_begins_are_the_reference(given, mean, longest):
    seed, candidates, *_ = given
    found = random_begins(torch.tensor(candidates), mean, longest, keys_of(seed, len(candidates)))
    for row, begins in enumerate(found.tolist()):
        expected = reference.random_begins(candidates[row], mean, longest, hashing.row_key(seed, 3, row))
        assert [i for i, b in enumerate(begins) if b and candidates[row][i]] == expected
        assert max((len(unit) for unit in reference.units(candidates[row], begins)), default=0) <= longest


def test_units_of_one_token_are_uniform_masking():
    """Bit for bit what kernels/masking.py chooses."""
    keys = keys_of(5, 50)
    candidates = torch.ones(50, 30, dtype=torch.bool)
    candidates[:, [0, 12, 29]] = False
    everywhere = torch.ones_like(candidates)
    expected = choose(candidates, 7, "without-replacement", keys)
    assert torch.equal(stretches(candidates, everywhere, 7, keys), expected)


@pytest.mark.parametrize(("mean", "longest"), [(3.0, 6), (2.0, 4)])
def test_units_have_geometric_lengths_up_to_the_longest(mean, longest):
    """Far from the row's ends, which cut units too."""
    begins = random_begins(torch.ones(2000, 200, dtype=torch.bool), mean, longest, keys_of(1, 2000))
    lengths = np.concatenate([np.diff(np.flatnonzero(row)) for row in begins.numpy()[:, :190]])
    chances = [(1 - 1 / mean) ** (n - 1) / mean for n in range(1, longest)]
    chances.append(1 - sum(chances))
    starts = np.concatenate([np.flatnonzero(row)[:-1] for row in begins.numpy()[:, :190]])
    early = lengths[starts < 190 - longest - 1]  # those whose end is seen, whatever their length
    counts = np.bincount(early, minlength=longest + 1)[1:]
    assert stats.chisquare(counts, np.array(chances) * counts.sum()).pvalue > 1e-4


def test_every_place_is_chosen_about_alike():
    candidates = torch.ones(20000, 40, dtype=torch.bool)
    candidates[:, [0, 39]] = False
    begins = random_begins(candidates, 3.0, 6, keys_of(2, 20000))
    counts = np.bincount(stretches(candidates, begins, 6, keys_of(3, 20000)).flatten().numpy(), minlength=40)
    assert counts[[0, 39]].sum() == 0
    assert counts[1:39].max() / counts[1:39].min() < 1.25
