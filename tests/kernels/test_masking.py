import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from elektron.kernels.counters import row_keys
from elektron.kernels.masking import choose, covered, masked_count, place
from reference import electra, hashing


@pytest.mark.parametrize(
    ("length", "rate", "count"), [(128, 0.15, 19), (512, 0.15, 77), (512, 0.25, 128), (5, 0.01, 1), (10, 0.25, 2)]
)
def test_count_is_a_share_of_the_whole_row(length, rate, count):
    assert masked_count(length, rate) == count


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_positions_are_the_reference(data):
    length = data.draw(st.integers(2, 40))
    row_count = data.draw(st.integers(1, 4))
    masks = [sorted(data.draw(st.sets(st.integers(0, length - 1), min_size=1))) for _ in range(row_count)]
    count = data.draw(st.integers(1, min(map(len, masks))))
    seed = data.draw(st.integers(0, 2**40))
    keys = row_keys(seed, 3, torch.arange(row_count, dtype=torch.int32))
    candidates = torch.zeros(row_count, length, dtype=torch.bool)
    for row, mask in enumerate(masks):
        candidates[row, mask] = True
    distinct = choose(candidates, count, "without-replacement", keys)
    repeated = choose(candidates, count, "with-replacement", keys)
    for row, mask in enumerate(masks):
        key = hashing.row_key(seed, 3, row)
        assert distinct[row].tolist() == electra.distinct_positions(mask, count, key)
        assert repeated[row].tolist() == electra.repeated_positions(mask, count, key)


@pytest.mark.parametrize("draws", ["without-replacement", "with-replacement"])
def test_positions_are_uniform_over_the_candidates(draws):
    keys = row_keys(1, 0, torch.arange(20000, dtype=torch.int32))
    candidates = torch.ones(20000, 12, dtype=torch.bool)
    candidates[:, [0, 5, 11]] = False
    positions = choose(candidates, 4, draws, keys)
    counts = np.bincount(positions.flatten().numpy(), minlength=12)
    assert counts[[0, 5, 11]].sum() == 0
    assert stats.chisquare(np.delete(counts, [0, 5, 11])).pvalue > 1e-4
    distinct = torch.tensor([len(set(row)) for row in positions.tolist()])
    assert (distinct == 4).all() if draws == "without-replacement" else (distinct < 4).any()


def test_google_s_draws_mask_fewer_positions():
    """With replacement, 19 draws from 125 hit 17.7 positions on average: 7% of the masked ones come twice or more."""
    keys = row_keys(2, 0, torch.arange(5000, dtype=torch.int32))
    positions = choose(torch.ones(5000, 125, dtype=torch.bool), 19, "with-replacement", keys)
    distinct = np.mean([len(set(row)) for row in positions.tolist()])
    assert distinct == pytest.approx(125 * (1 - (1 - 1 / 125) ** 19), rel=0.01)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1000), st.booleans()), min_size=1, max_size=12),
    st.lists(st.integers(0, 1000), min_size=10, max_size=10),
)
def test_place_and_covered_are_the_reference(draws, original):
    positions, values, where = (torch.tensor([column]) for column in zip(*draws, strict=True))
    placed = place(torch.tensor([original]), positions, values)[0].tolist()
    assert placed == electra.corrupted_row(original, positions[0].tolist(), values[0].tolist())
    hit = {position for position, _, true in draws if true}
    assert covered(positions, where, 10)[0].tolist() == [i in hit for i in range(10)]
