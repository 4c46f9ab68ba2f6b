import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from elektron.kernels.counters import (
    _folded,
    dropout,
    elements,
    fold,
    gumbel,
    kept,
    mix,
    row_keys,
    seed_key,
    uniform,
    unsigned,
)
from reference import hashing

words = st.integers(0, 2**32 - 1)


def as_key(value: int) -> torch.Tensor:
    return torch.tensor(np.uint32(value).astype(np.int32))


@given(words)
def test_mix_is_the_reference(x):
    assert int(unsigned(mix(as_key(x)))) == hashing.mix(x)


@given(words, words)
def test_fold_is_the_reference(key, counter):
    assert int(unsigned(fold(as_key(key), as_key(counter)))) == hashing.fold(key, counter)
    assert int(unsigned(fold(as_key(key), counter))) == hashing.fold(key, counter)


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5)
)
def test_row_keys_are_the_reference(seed, step, rows):
    keys = row_keys(seed, torch.tensor(step, dtype=torch.int32), torch.tensor(rows, dtype=torch.int32))
    assert unsigned(keys).tolist() == [hashing.row_key(seed, step, row) for row in rows]


@given(words, st.integers(1, 40))
def test_elements_are_folds(key, count):
    assert unsigned(elements(as_key(key), count)).tolist() == [hashing.fold(key, i) for i in range(count)]


def test_the_kernel_folds_alike(device):
    keys = torch.randint(-(2**31), 2**31, (37, 1), dtype=torch.int32)
    counters = torch.randint(-(2**31), 2**31, (1, 53), dtype=torch.int32)
    assert torch.equal(_folded(keys.to(device), counters.to(device)).cpu(), fold(keys, counters))


def test_mix_leaves_its_argument_alone():
    x = torch.arange(4, dtype=torch.int32)
    mix(x)
    assert x.tolist() == [0, 1, 2, 3]


def test_seeds_differ_in_either_half():
    keys = {int(seed_key(seed)) for seed in (0, 1, 1 << 32, (1 << 32) + 1)}
    assert len(keys) == 4


@given(words)
def test_uniform_is_open_and_finite(bits):
    value = float(uniform(as_key(bits)))
    assert 0.0 < value < 1.0
    assert value == hashing.uniform(bits)
    assert torch.isfinite(gumbel(as_key(bits)))


@pytest.mark.parametrize("seed", range(3))
def test_bits_look_random(seed):
    """Uniform over 256 bins, uncorrelated with the element before and with the row above."""
    bits = elements(row_keys(seed, 7, torch.arange(64, dtype=torch.int32)), 4096)
    values = uniform(bits).double().numpy()
    counts = np.bincount((values.ravel() * 256).astype(int), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4
    assert abs(np.corrcoef(values[:, 1:].ravel(), values[:, :-1].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(values[1:].ravel(), values[:-1].ravel())[0, 1]) < 0.01


def test_gumbel_noise_has_its_distribution():
    noise = gumbel(elements(seed_key(3), 1 << 16)).double().numpy()
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-3


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_drops_and_scales(rate):
    keys = row_keys(0, 0, torch.arange(32, dtype=torch.int32))
    dropped = dropout(torch.ones(32, 50, 20), rate, keys)
    assert set(dropped.unique().tolist()) == {0.0, float(torch.tensor(1.0) / (1 - rate))}
    share = float((dropped == 0).double().mean())
    assert abs(share - rate) < 5 * (rate * (1 - rate) / dropped.numel()) ** 0.5


def test_dropout_of_a_row_depends_on_the_row_alone():
    keys = row_keys(0, 5, torch.arange(8, dtype=torch.int32))
    x = torch.randn(8, 6, 4)
    whole = dropout(x, 0.3, keys)
    parts = torch.cat([dropout(x[i : i + 2], 0.3, keys[i : i + 2]) for i in range(0, 8, 2)])
    assert torch.equal(whole, parts)
    assert not torch.equal(whole, dropout(x, 0.3, fold(keys, 1)))


@given(words, st.integers(1, 5), st.integers(1, 7), st.floats(0.01, 0.99))
def test_what_dropout_keeps_is_the_reference(key, height, width, rate):
    found = kept(torch.Size([1, height, width]), rate, as_key(key)[None], torch.float32)
    expected = [[hashing.kept(key, line, place, width, rate) for place in range(width)] for line in range(height)]
    assert found[0].tolist() == expected


def test_dropout_without_keys_or_rate_is_nothing():
    x = torch.randn(2, 3)
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, torch.zeros(2, dtype=torch.int32)) is x
