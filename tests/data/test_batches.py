import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elektron.data import shards
from elektron.data.batches import Batch, Rows, permute, prefetched
from elektron.data.shards import Index, Stream
from elektron.data.storage import storage
from elektron.data.tokenizer import Specials, Tokenizer
from elektron.kernels.counters import seed_key
from reference import hashing, rows

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)


class Vocabulary(Tokenizer):  # all that a shard asks of a tokenizer
    def __init__(self) -> None:
        self.vocab_size, self.specials = 1000, SPECIALS


def make_stream(folder, parts: list[tuple[list[int], list[int]]]) -> Stream:
    """A stream of shards, each (tokens, ends)."""
    made = []
    for number, (tokens, ends) in enumerate(parts):
        file, content = f"shard-{number:05d}.bin", (np.array(tokens), np.array(ends, np.int64), len(tokens))
        made.append(shards.write_shard(storage(folder), file, *content, Vocabulary(), b"x" * 16))
    index = Index(1, 1000, "", {}, 0.0, sum(s.tokens for s in made), 0, 0, 0, tuple(made))
    return shards.open_stream(folder, index, "train")


@st.composite
def streams(draw):
    """Shards of tokens 5, 6, 7, ... with documents' ends at random places."""
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    parts, token = [], 5
    for length in lengths:
        ends = sorted(draw(st.sets(st.integers(1, length), max_size=4)))
        parts.append((list(range(token, token + length)), ends))
        token += length
    return parts


@given(
    streams(), st.integers(5, 40), st.integers(0, 2**64 - 1), st.integers(0, 50), st.integers(1, 12), st.integers(1, 4)
)
@settings(max_examples=150, deadline=None)
def test_rows_are_the_reference(tmp_path_factory, parts, length, seed, step, size, world):
    stream = make_stream(tmp_path_factory.mktemp("stream"), parts)
    tokens = [token for part, _ in parts for token in part]
    starts = np.cumsum([0] + [len(part) for part, _ in parts]).tolist()
    ends = {start + end for start, (_, part_ends) in zip(starts[:-1], parts, strict=True) for end in part_ends}
    made = Rows(stream, SPECIALS, length, seed_key(seed))
    whole = np.arange(size * world)
    batches = [made.batch(step, size * world, places) for places in np.array_split(whole, world)]
    assert torch.cat([batch.rows for batch in batches]).tolist() == list(range(size * world))
    originals, segments = (
        torch.cat([getattr(batch, name) for batch in batches]).tolist() for name in Batch._fields[:2]
    )
    for i, found in enumerate(zip(originals, segments, strict=True)):
        number = step * size * world + i
        expected = rows.row(tokens, ends, number, length, hashing.seed_key(seed), SPECIALS.cls, SPECIALS.sep)
        assert found == expected


@given(st.integers(1, 3000), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_permute_is_a_permutation_and_the_reference(n, seed):
    index = np.arange(n)
    found = permute(index, n, seed_key(seed))
    assert sorted(found.tolist()) == index.tolist()
    for i in (0, n // 2, n - 1):
        assert found[i] == rows.permuted(i, n, hashing.seed_key(seed))


def test_permutations_of_large_numbers():
    n = 3 * 10**10 + 7
    index = np.array([0, 1, n // 3, n - 1])
    found = permute(index, n, seed_key(1))
    assert found.tolist() == [rows.permuted_large(i, n, hashing.seed_key(1)) for i in index.tolist()]
    assert ((found >= 0) & (found < n)).all()


def test_permutations_look_random():
    """Neighbours do not stay neighbours, and keys give different orders."""
    first, second = (permute(np.arange(10000), 10000, seed_key(seed)) for seed in (0, 1))
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.05
    assert abs(np.corrcoef(first, np.arange(10000))[0, 1]) < 0.05
    assert (first == second).mean() < 0.01


@pytest.mark.parametrize("length", [8, 13, 40])
def test_an_epoch_holds_every_token_once(tmp_path, length):
    total = 997
    stream = make_stream(tmp_path, [(list(range(5, 505)), [100, 400]), (list(range(505, 5 + total)), [20])])
    made = Rows(stream, SPECIALS, length, seed_key(0))
    batch = made.batch(0, made.count)
    text = sorted(batch.original[batch.original > 4].tolist())
    wrapped = made.count * (length - 3) - total
    assert text == sorted([*range(5, 5 + total), *range(5, 5 + wrapped)])
    again = made.batch(1, made.count)
    assert not torch.equal(batch.original, again.original)


def test_rows_are_full_and_cut_on_both_sides(data):
    made = Rows(data.train, data.tokenizer.specials, 32, seed_key(5))
    batch = made.batch(3, 64)
    cls, sep = data.tokenizer.specials.cls, data.tokenizer.specials.sep
    assert batch.original.shape == batch.segments.shape == (64, 32)
    assert (batch.original[:, 0] == cls).all()
    assert (batch.original[:, -1] == sep).all()
    assert ((batch.original == sep).sum(1) == 2).all()
    inner = (batch.original[:, :-1] == sep).long().argmax(1)
    assert (inner >= 2).all()
    assert (inner <= 29).all()
    assert torch.equal(batch.segments, (torch.arange(32) > inner[:, None]).long())


def test_too_short_rows_are_refused(data):
    with pytest.raises(ValueError, match="rows of 4 tokens are too short"):
        Rows(data.train, data.tokenizer.specials, 4, seed_key(0))
    Rows(data.train, data.tokenizer.specials, 5, seed_key(0)).batch(0, 3)


def empty_batch(step: int) -> Batch:
    return Batch(*(torch.tensor([step]) for _ in range(3)))


def test_prefetching_keeps_the_order():
    steps = [int(batch.rows) for batch in prefetched(empty_batch, 3, 60)]
    assert steps == list(range(3, 60))


def test_prefetching_passes_errors_on():
    def make(step: int) -> Batch:
        if step == 2:
            raise ValueError("broken shard")
        return empty_batch(step)

    found = prefetched(make, 0, 5)
    assert [int(next(found).rows), int(next(found).rows)] == [0, 1]
    with pytest.raises(ValueError, match="broken shard"):
        next(found)


def test_prefetching_works_ahead_and_ends_with_its_user():
    made = []
    threads = threading.active_count()
    found = prefetched(lambda step: made.append(step) or empty_batch(step), 0, 1000, depth=3)
    next(found)
    deadline = time.time() + 10
    while len(made) < 4 and time.time() < deadline:
        time.sleep(0.01)
    assert 4 <= len(made) <= 5
    found.close()
    assert threading.active_count() == threads
