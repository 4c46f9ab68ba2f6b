"""Rows laid out, batches of about one length, padding."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elektron.data.examples import IGNORED, Examples, Row, batches, in_order, laid_out, rounded
from elektron.data.tokenizer import Specials
from elektron.kernels.counters import seed_key

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
CPU = torch.device("cpu")


def popped(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """One token at a time off the longer of the two; off the second if they are equal."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


@given(st.integers(0, 30), st.integers(0, 30), st.integers(5, 70))
@settings(deadline=None)
def test_pairs_lose_the_end_of_the_longer(first, second, longest):
    a, b = np.arange(100, 100 + first), np.arange(200, 200 + second)
    tokens, begins = laid_out(SPECIALS, a, b, longest)
    kept_a, kept_b = popped(a.tolist(), b.tolist(), longest - 3)
    assert tokens.tolist() == [2, *kept_a, 3, *kept_b, 3]
    assert begins == len(kept_a) + 2


@given(st.integers(0, 30), st.integers(3, 40))
def test_single_texts_lose_their_end(first, longest):
    a = np.arange(100, 100 + first)
    tokens, begins = laid_out(SPECIALS, a, None, longest)
    assert tokens.tolist() == [2, *a[: longest - 2].tolist(), 3]
    assert begins == len(tokens)


def rows(lengths: list[int], are_tagged: bool = False) -> list[Row]:
    made = []
    for number, length in enumerate(lengths):
        tokens = 10 + number + np.arange(length)
        target = np.arange(length) - 1 if are_tagged else np.array(number)
        made.append(Row(tokens, max(1, length - 2), target))
    return made


@pytest.mark.parametrize("are_tagged", [False, True])
def test_a_batch_is_its_rows_and_padding(are_tagged):
    made = rows([4, 7, 1, 5], are_tagged)
    inputs = Examples(made, SPECIALS, CPU, are_tagged).inputs(torch.tensor([3, 2, 1]), 7)
    for place, number in enumerate([3, 2, 1]):
        row, length = made[number], len(made[number].tokens)
        assert inputs.tokens[place].tolist() == [*row.tokens.tolist(), *[0] * (7 - length)]
        assert inputs.mask[place].tolist() == [True] * length + [False] * (7 - length)
        assert inputs.segments[place].tolist() == [int(row.second <= i < length) for i in range(7)]
        if are_tagged:
            assert inputs.targets[place].tolist() == [*row.target.tolist(), *[IGNORED] * (7 - length)]
        else:
            assert inputs.targets[place] == number


@given(st.integers(1, 300), st.integers(1, 16), st.integers(1, 100), st.integers(1, 130), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_every_example_comes_once_an_epoch(count, size, steps, window, seed):
    lengths = np.random.default_rng(seed).integers(3, 100, count)
    found = list(batches(lengths, size, steps, window, seed_key(seed)))
    assert [len(batch) for batch in found] == [size] * steps
    times = Counter(np.concatenate(found).tolist())
    whole, rest = divmod(size * steps, count)
    assert sorted(times[i] for i in range(count)) == sorted([whole + 1] * rest + [whole] * (count - rest))


def test_in_a_window_of_one_rows_come_as_they_were_shuffled():
    lengths = np.random.default_rng(0).integers(3, 100, 50)
    key = seed_key(0)
    found = np.sort(np.stack(list(batches(lengths, 8, 20, 1, key))), 1)
    others = np.sort(np.stack(list(batches(lengths[::-1].copy(), 8, 20, 1, key))), 1)
    assert np.array_equal(found, others), "lengths have no say"
    assert not np.array_equal(found, np.sort(np.stack(list(batches(lengths, 8, 20, 4, key))), 1))


def test_batches_are_of_about_one_length_and_not_in_order():
    lengths = np.clip(np.random.default_rng(0).lognormal(4.5, 0.6, 5000), 4, 512).astype(int)
    found = list(batches(lengths, 32, 300, 128, seed_key(1)))
    padded = sum(32 * rounded(int(lengths[batch].max()), 512) for batch in found)
    read = sum(lengths[batch].sum() for batch in found)
    assert 1 - read / padded < 0.1
    longest = [lengths[batch].max() for batch in found[:32]]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)
    others = list(batches(lengths, 32, 300, 128, seed_key(2)))
    assert [set(batch) for batch in found] != [set(batch) for batch in others]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 200))
def test_in_order_takes_all_within_the_limit(lengths, tokens):
    given_lengths = np.array(lengths, dtype=np.int64)
    found = list(in_order(given_lengths, tokens))
    assert sorted(number for part in found for number in part) == list(range(len(lengths)))
    for part in found:
        assert len(part) == 1 or len(part) * given_lengths[part].max() <= tokens


@given(st.integers(1, 4096))
def test_rounded_lengths_are_few_and_near(length):
    found = rounded(length, 5000)
    assert length <= found <= max(length * 1.125, length + 15)
    assert rounded(found, 5000) == found
    assert rounded(length, length) == length


def test_there_are_eight_lengths_an_octave():
    assert len({rounded(length, 512) for length in range(129, 257)}) == 8
    assert len({rounded(length, 512) for length in range(1, 129)}) == 8
    assert rounded(500, 512) == 512
