import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from elektron.kernels.counters import row_keys
from elektron.kernels.vocabulary import sample, speak
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


@given(st.integers(1, 700), st.floats(0.1, 8), st.booleans(), st.integers(0, 2**40))
@settings(max_examples=100, deadline=None)
def test_samples_of_many_blocks_are_the_reference(size, spread, forbid, seed):
    logits = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread
    keys = row_keys(seed, 3, torch.arange(3, dtype=torch.int32))
    best = int(logits.argmax())
    forbidden = torch.full((3,), best) if forbid else None
    found = sample(logits.expand(3, size), 0.8, forbidden, keys)
    for row in range(3):
        key = hashing.row_key(seed, 3, row)
        assert int(found[row]) == electra.sampled_token(logits.tolist(), 0.8, best if forbid else None, key)


def test_a_block_of_forbidden_words_is_never_drawn():
    """The last block has one word, and it is forbidden, however likely."""
    logits = torch.zeros(1000, 257)
    logits[:, 256] = 60.0
    drawn = sample(logits, 1.0, torch.full((1000,), 256), row_keys(0, 0, torch.arange(1000, dtype=torch.int32)))
    assert int(drawn.max()) < 256
    assert len(drawn.unique()) > 200


def test_a_lone_forbidden_word_is_given_back():
    assert sample(torch.zeros(2, 1), 1.0, torch.zeros(2, dtype=torch.long), torch.arange(2).int()).tolist() == [0, 0]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("forbidden", [None, 3])
@pytest.mark.parametrize("size", [12, 300])
def test_samples_follow_the_softmax(temperature, forbidden, size):
    torch.manual_seed(0)
    logits = torch.randn(size) * 2
    count = 40000
    keys = row_keys(0, 1, torch.arange(count, dtype=torch.int32))
    never = None if forbidden is None else torch.full((count,), forbidden)
    drawn = sample(logits.expand(count, size), temperature, never, keys)
    probabilities = (logits / temperature).double()
    if forbidden is not None:
        probabilities[forbidden] = -torch.inf
    expected = probabilities.softmax(0).numpy() * count
    found = np.bincount(drawn.numpy(), minlength=size)
    assert found[expected == 0].sum() == 0
    rare = expected < 10
    found, expected = (np.append(x[~rare], x[rare].sum()) for x in (found, expected))
    assert stats.chisquare(found[expected > 0], expected[expected > 0]).pvalue > 1e-4


@given(st.integers(1, 8), st.integers(1, 9), st.integers(2, 300), st.booleans(), st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_speaking_is_the_reference(rows, width, size, allowed, seed):
    noise = torch.Generator().manual_seed(seed)
    features, table = (torch.randn(n, width, generator=noise) for n in (rows, size))
    bias, targets = torch.randn(size, generator=noise), torch.randint(size, (rows,), generator=noise)
    said = speak(features, table, bias, targets, 1.3, allowed, row_keys(seed, 0, torch.arange(rows, dtype=torch.int32)))
    for row in range(rows):
        logits = [float(torch.dot(features[row], table[v]) + bias[v]) for v in range(size)]
        target = int(targets[row])
        assert float(said.losses[row]) == pytest.approx(electra.cross_entropy(logits, target), rel=1e-4, abs=1e-4)
        forbidden = None if allowed else target
        assert int(said.sampled[row]) == electra.sampled_token(logits, 1.3, forbidden, hashing.row_key(seed, 0, row))
        assert bool(said.hits[row]) == (target == max(range(size), key=lambda v: logits[v]))


def test_only_the_losses_carry_a_gradient():
    features, table, bias = (torch.randn(*shape, requires_grad=True) for shape in ((5, 4), (7, 4), (7,)))
    keys = torch.arange(5, dtype=torch.int32)
    said = speak(features, table, bias, torch.arange(5), 1.0, True, keys)
    assert [tensor.requires_grad for tensor in said] == [True, False, False]
    logits = torch.randn(5, 7)
    before = logits.clone()
    sample(logits, 1.0, torch.arange(5), keys)
    assert torch.equal(logits, before)
