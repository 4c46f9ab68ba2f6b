"""A gradient that is no number: the run stops, or the step is left out, counted and named."""

from pathlib import Path

import pytest
import torch

from elektron.train.checkpoint import all_steps, load_newest
from elektron.train.distributed import ALONE
from elektron.train.metrics import read
from train.ranks import STEPS, run_poisoned, run_ranks

POISONED = (3, 17, 18)


def outcome(folder: Path):
    saved = load_newest(folder)
    assert saved is not None
    return saved, [{k: v for k, v in record.items() if k != "clock"} for record in read(folder)]


@pytest.fixture(scope="module")
def skipped(tmp_path_factory, data_folder) -> Path:
    folder = tmp_path_factory.mktemp("skipped")
    assert run_poisoned(ALONE, folder, data_folder, 0, POISONED, "skip") == 0
    return folder


def test_steps_are_left_out_counted_and_named(skipped):
    saved, records = outcome(skipped)
    assert all(tensor.isfinite().all() for tensor in [*saved.model.values(), *saved.optimizer.values()])
    assert saved.state["updates"] == STEPS - len(POISONED)
    assert [record.get("skipped", 0) for record in records if record["kind"] == "train"] == [1, 2, 0, 0, 0]
    told = [record for record in records if record["kind"] == "health" and "not finite" in record["message"]]
    assert [record["step"] for record in told] == [10, 20]
    assert "2 of 10 steps" in told[1]["message"]


def test_a_step_that_is_left_out_changes_nothing(tmp_path, data_folder):
    """Neither weights nor moments, nor the next update's bias correction."""
    for name, steps in (("before", ()), ("left-out", (11,))):
        folder = tmp_path / name
        last = 10 if name == "before" else 11
        assert run_poisoned(ALONE, folder, data_folder, 0, steps, "skip", last=last) == 143
    before, after = load_newest(tmp_path / "before"), load_newest(tmp_path / "left-out")
    assert before is not None
    assert after is not None
    assert (before.step, after.step) == (10, 11)
    assert before.state["updates"] == after.state["updates"] == 10
    for tensors, others in ((before.model, after.model), (before.optimizer, after.optimizer)):
        assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())


@pytest.mark.parametrize("stop", [2, 3, 17, 30])
def test_stopped_and_resumed_is_the_same_run(tmp_path, data_folder, skipped, stop):
    """Bit for bit: what was skipped before has not been counted as an update."""
    assert run_poisoned(ALONE, tmp_path, data_folder, 0, POISONED, "skip", last=stop) == 143
    assert all_steps(tmp_path)[-1] == stop
    assert run_poisoned(ALONE, tmp_path, data_folder, 0, POISONED, "skip") == 0
    (ours, records), (theirs, others) = outcome(tmp_path), outcome(skipped)
    assert records == others
    assert ours.state == theirs.state
    for tensors, expected in ((ours.model, theirs.model), (ours.optimizer, theirs.optimizer)):
        assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items())


@pytest.mark.distributed
def test_what_one_rank_meets_all_leave_out(tmp_path, data_folder, skipped):
    assert run_ranks(2, run_poisoned, tmp_path, data_folder, 1, POISONED, "skip") == [0, 0]
    (ours, records), (theirs, others) = outcome(tmp_path), outcome(skipped)
    assert ours.state["updates"] == theirs.state["updates"]
    losses = [[r["generator_loss"] for r in found if r["kind"] == "train"] for found in (records, others)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_run_that_learns_nothing_any_more_stops(tmp_path, data_folder):
    with pytest.raises(ValueError, match="all 10 steps before step 20 were skipped"):
        run_poisoned(ALONE, tmp_path, data_folder, 0, tuple(range(11, 30)), "skip")
    assert all_steps(tmp_path) == [10]


def test_without_leave_to_skip_the_run_stops_and_the_checkpoint_is_from_before(tmp_path, data_folder):
    with pytest.raises(ValueError, match=r"not finite at step 20 or shortly before"):
        run_poisoned(ALONE, tmp_path, data_folder, 0, (17,), "stop")
    saved, records = outcome(tmp_path)
    assert saved.step == 10
    assert all(tensor.isfinite().all() for tensor in saved.model.values())
    assert "not finite" in records[-1]["message"]
