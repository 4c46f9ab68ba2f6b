"""1, 2, 3 and 4 ranks follow one curve; so does a run that is sharded, or stopped and gone on with by others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import documents
from elektron.data.corpus import Piece
from elektron.data.prepare import ShardsConfig, write_shards
from elektron.train.checkpoint import all_steps, load_newest
from elektron.train.distributed import ALONE, World, joined
from elektron.train.ends import OUT_OF_TIME
from elektron.train.loop import TrainConfig
from elektron.train.metrics import read
from train.ranks import (
    LENGTH,
    PLAIN,
    ROWS,
    STEPS,
    WATCH,
    heard,
    order_of_events,
    run,
    run_ranks,
    run_signalled,
    run_with_other_data,
    second_steps,
)

pytestmark = pytest.mark.distributed


def curves(folder: Path) -> dict[str, list[float]]:
    """All that was recorded of training and of held-out text."""
    records = [record for record in read(folder) if record["kind"] in ("train", "held")]
    names = {(r["kind"], name) for r in records for name, value in r.items() if isinstance(value, float)}
    return {f"{kind} {name}": [r[name] for r in records if r["kind"] == kind] for kind, name in sorted(names)}


def assert_same_curves(found: Path, expected: Path) -> None:
    ours, theirs = curves(found), curves(expected)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert len(ours[name]) == len(theirs[name])
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-9), name


@pytest.fixture(scope="module")
def alone(tmp_path_factory, data_folder) -> Path:
    """The run of a process that is no rank."""
    folder = tmp_path_factory.mktemp("alone")
    assert run(ALONE, folder, data_folder, PLAIN) == 0
    assert len(curves(folder)["train generator_loss"]) == STEPS
    return folder


@given(st.integers(1, 7), st.integers(1, 4), st.integers(1, 40))
@settings(deadline=None)
def test_every_row_is_one_ranks_and_parts_do_not_depend_on_ranks(size, parts, rows):
    shares = [World(rank, size).share(parts * rows, parts).reshape(parts, -1) for rank in range(size)]
    for part in range(parts):
        together = np.concatenate([share[part] for share in shares])
        assert together.tolist() == list(range(part * rows, (part + 1) * rows))
    counts = [share.shape[1] for share in shares]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_follow_one_curve(tmp_path, data_folder, alone, size):
    """Each loss and each metric to 1e-5 over 50 steps, with dropout; the weights in the end are close."""
    assert run_ranks(size, run, tmp_path, data_folder, PLAIN) == [0] * size
    assert_same_curves(tmp_path, alone)
    ours, theirs = load_newest(tmp_path), load_newest(alone)
    assert ours is not None
    assert theirs is not None
    assert ours.state["updates"] == theirs.state["updates"] == STEPS
    facts = read(tmp_path)[0]["clock"]
    assert facts["ranks"] == size
    assert facts["device"].startswith(f"{size} x CPU" if size > 1 else "CPU")
    for name, tensor in theirs.model.items():
        torch.testing.assert_close(ours.model[name], tensor, rtol=1e-3, atol=1e-5)


def test_unequal_shares_follow_it_too(tmp_path, data_folder):
    """Of 3 ranks and parts of 5 rows; with steps of shorter rows, of which a part has more."""
    config = TrainConfig(phases=((20, 40, 10),), accumulate=2, short=0.3)
    assert run(ALONE, tmp_path / "one", data_folder, config) == 0
    assert run_ranks(3, run, tmp_path / "three", data_folder, config) == [0] * 3
    assert_same_curves(tmp_path / "three", tmp_path / "one")


def test_four_are_stopped_and_two_go_on(tmp_path, data_folder, alone):
    """By a signal that only one of them gets, and all heed after the same step."""
    assert run_ranks(4, run_signalled, tmp_path, data_folder, 2, 20) == [143] * 4
    assert all_steps(tmp_path)[-1] == 20
    assert run_ranks(2, run, tmp_path, data_folder, PLAIN) == [0, 0]
    assert_same_curves(tmp_path, alone)


@pytest.mark.parametrize(("size", "shard"), [(2, 2), (4, 2)])
def test_shards_follow_the_curve_and_leave_the_same_checkpoints(tmp_path, data_folder, alone, size, shard):
    assert run_ranks(size, run, tmp_path, data_folder, replace(PLAIN, shard=shard)) == [0] * size
    assert_same_curves(tmp_path, alone)
    ours, theirs = load_newest(tmp_path), load_newest(alone)
    assert ours is not None
    assert theirs is not None
    assert ours.state.keys() == theirs.state.keys()
    for tensors, others in ((ours.model, theirs.model), (ours.optimizer, theirs.optimizer)):
        assert {name: tensor.shape for name, tensor in tensors.items()} == {n: t.shape for n, t in others.items()}


def test_a_run_goes_from_shards_to_none_and_back(tmp_path, data_folder, alone):
    soon = replace(WATCH, deadline=0.1)
    sharded = replace(PLAIN, shard=2)
    assert run_ranks(2, run, tmp_path, data_folder, sharded, soon) == [OUT_OF_TIME] * 2
    (first,) = all_steps(tmp_path)
    assert run(ALONE, tmp_path, data_folder, PLAIN, soon) == OUT_OF_TIME
    assert first < all_steps(tmp_path)[-1] < STEPS
    assert run_ranks(2, run, tmp_path, data_folder, sharded) == [0, 0]
    assert_same_curves(tmp_path, alone)


@pytest.mark.parametrize(("accumulate", "is_sharded"), [(1, False), (2, False), (2, True)])
def test_every_objective_has_the_gradients_of_the_whole_batch(data_folder, accumulate, is_sharded):
    expected = second_steps(ALONE, data_folder, accumulate)
    for of_rank in run_ranks(2, second_steps, data_folder, accumulate, is_sharded):
        for kind, found in of_rank.items():
            whole = expected[kind]
            error = np.linalg.norm(found.gradients - whole.gradients)
            assert error < 2e-5 * np.linalg.norm(whole.gradients), kind
            assert found.tallies == pytest.approx(whole.tallies, rel=1e-5, abs=1e-6), kind
            assert found.norm == pytest.approx(whole.norm, rel=1e-5), kind


def test_gradients_are_sent_while_the_backward_pass_runs(data_folder):
    """The words' gradient is the last to be there; between the parts of a batch nothing is sent."""
    for first, second in run_ranks(2, order_of_events, data_folder):
        assert first[:2] == ["words", "words"]
        assert second[0] == "words"
        assert second[1] == "layers"
        assert "words" in second[2:]
        assert second[-1] == "rest"
        assert first.count("layers") == second.count("layers") == 2  # of two networks


def test_all_hear_what_the_first_says():
    said = ["", "plain", "\u03b5\u03bb " * 1000]
    assert run_ranks(2, heard, said) == [said, said]


def test_other_data_on_a_rank_is_refused(tmp_path, data_folder, small_tokenizer):
    other = tmp_path / "other"
    write_shards(
        (Piece(text, True) for text in documents(90, seed=5)), small_tokenizer, other, ShardsConfig(processes=1)
    )
    with pytest.raises(AssertionError, match="rank 1 has other data than the first rank"):
        run_ranks(2, run_with_other_data, tmp_path / "run", data_folder, other)


def test_more_ranks_than_rows_are_refused(tmp_path, data_folder):
    with pytest.raises(AssertionError, match="leave nothing for some of 2 ranks"):
        run_ranks(2, run, tmp_path, data_folder, TrainConfig(phases=((2, LENGTH, 1),)))


def test_shards_that_do_not_divide_the_ranks_are_refused(tmp_path, data_folder):
    with pytest.raises(AssertionError, match="--train.shard 2 does not divide the 3 ranks"):
        run_ranks(3, run, tmp_path, data_folder, replace(PLAIN, shard=2))


def test_the_deadline_ends_a_run(tmp_path, data_folder):
    endless = replace(PLAIN, phases=((1_000_000, LENGTH, ROWS),))
    assert run(ALONE, tmp_path, data_folder, endless, replace(WATCH, deadline=0.2)) == OUT_OF_TIME
    (step,) = all_steps(tmp_path)[-1:]
    assert 0 < step < 1_000_000


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("config", [PLAIN, replace(PLAIN, accumulate=2), replace(PLAIN, kernels=False)])
def test_nccl_changes_nothing(tmp_path, data_folder, monkeypatch, config):
    """A world of one rank, whose sums are recorded in the graph with all else: bit for bit the run of no rank."""
    assert run(ALONE, tmp_path / "alone", data_folder, config, device="cuda") == 0
    address = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    for name, value in address.items():
        monkeypatch.setenv(name, value)
    with joined(torch.device("cuda")) as world:
        assert run(world, tmp_path / "joined", data_folder, config, device="cuda") == 0
    ours, theirs = load_newest(tmp_path / "joined"), load_newest(tmp_path / "alone")
    assert ours is not None
    assert theirs is not None
    for tensors, others in ((ours.model, theirs.model), (ours.optimizer, theirs.optimizer)):
        assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
