import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from elektron.kernels.counters import row_keys
from elektron.objectives.sampling import sample
from reference import electra, hashing


@given(
    st.lists(st.floats(-20, 20), min_size=2, max_size=30),
    st.sampled_from([0.5, 1.0, 1.7]),
    st.booleans(),
    st.integers(0, 2**40),
)
@settings(max_examples=200, deadline=None)
def test_samples_are_the_reference(logits, temperature, forbid, seed):
    keys = row_keys(seed, 0, torch.tensor([9], dtype=torch.int32))
    forbidden = torch.tensor([1]) if forbid else None
    found = sample(torch.tensor([logits], dtype=torch.float64), temperature, forbidden, keys)
    expected = electra.sampled_token(logits, temperature, 1 if forbid else None, hashing.row_key(seed, 0, 9))
    assert found.item() == expected


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("forbidden", [None, 3])
def test_samples_follow_the_softmax(temperature, forbidden):
    torch.manual_seed(0)
    logits = torch.randn(12) * 2
    count = 40000
    keys = row_keys(0, 1, torch.arange(count, dtype=torch.int32))
    never = None if forbidden is None else torch.full((count,), forbidden)
    drawn = sample(logits.expand(count, 12), temperature, never, keys)
    probabilities = (logits / temperature).double()
    if forbidden is not None:
        probabilities[forbidden] = -torch.inf
    expected = probabilities.softmax(0).numpy() * count
    found = np.bincount(drawn.numpy(), minlength=12)
    likely = expected > 0
    assert found[~likely].sum() == 0
    assert stats.chisquare(found[likely], expected[likely]).pvalue > 1e-4


def test_shapes_and_arguments_are_kept():
    logits = torch.randn(2, 3, 7)
    before = logits.clone()
    keys = torch.arange(6, dtype=torch.int32).view(2, 3)
    assert sample(logits, 1.0, None, keys).shape == (2, 3)
    assert torch.equal(logits, before)
