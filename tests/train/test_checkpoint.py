import errno
import os
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from elektron.train import checkpoint
from elektron.train.checkpoint import Checkpoint, Writer, all_steps, load_newest, restore, save


def make(step: int) -> Checkpoint:
    return Checkpoint(step, {"a": torch.full((50,), float(step))}, {"first.a": torch.zeros(50)}, {"steps": step})


def test_the_newest_comes_back(tmp_path):
    assert load_newest(tmp_path) is None
    for step in (5, 10, 100):
        save(tmp_path, make(step), keep=2)
    assert all_steps(tmp_path) == [10, 100]
    found = load_newest(tmp_path)
    assert found is not None
    assert (found.step, found.state) == (100, {"steps": 100})
    assert torch.equal(found.model["a"], make(100).model["a"])
    assert sorted(path.name for path in (tmp_path / checkpoint.FOLDER).iterdir()) == ["step-00000010", "step-00000100"]


def test_a_step_may_be_written_again(tmp_path):
    save(tmp_path, make(5), keep=3)
    save(tmp_path, make(5)._replace(state={"again": True}), keep=3)
    found = load_newest(tmp_path)
    assert found is not None
    assert found.state == {"again": True}


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_damage_is_refused_by_name(tmp_path_factory, data):
    run = tmp_path_factory.mktemp("run")
    for step in (5, 10):
        save(run, make(step), keep=2)
    folder = run / checkpoint.FOLDER / "step-00000010"
    path = folder / data.draw(st.sampled_from(sorted(p.name for p in folder.iterdir())))
    content = bytearray(path.read_bytes())
    how = data.draw(st.sampled_from(["flip", "cut", "remove"]))
    if how == "remove":
        path.unlink()
    else:
        at = data.draw(st.integers(0, len(content) - 1))
        if how == "flip":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[at:]
        assume(content.rstrip(b"\n") != path.read_bytes().rstrip(b"\n"))  # a last newline is no loss
        path.write_bytes(content)
    with pytest.raises(ValueError, match="step-00000010") as caught:
        load_newest(run)
    assert "to go on from step 5" in str(caught.value)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, make(5), keep=1)
    real = os.fsync
    for failing in range(1, 7):
        calls = 0

        def fsync(descriptor: int) -> None:
            nonlocal calls
            calls += 1
            if calls == failing:  # noqa: B023
                raise OSError(errno.ENOSPC, "No space left on device")
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="No space left on device") as caught:
            save(tmp_path, make(10), keep=1)
        monkeypatch.setattr(os, "fsync", real)
        assert caught.value.errno == errno.ENOSPC
        found = load_newest(tmp_path)
        assert found is not None
        assert found.step == 5
        assert "the newest whole checkpoint is step 5" in str(caught.value)
        assert [path.name for path in (tmp_path / checkpoint.FOLDER).iterdir()] == ["step-00000005"]
    save(tmp_path, make(10), keep=1)
    assert all_steps(tmp_path) == [10]


def test_restoring_checks_names_and_shapes():
    model = nn.Linear(3, 2)
    good = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    restore(model, good)
    assert (model.weight == 1).all()
    with pytest.raises(ValueError, match="another model.*extra"):
        restore(model, good | {"extra": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"weight is \[2, 4\] there, \[2, 3\] here"):
        restore(model, good | {"weight": torch.ones(2, 4)})


def test_another_version_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(checkpoint, "VERSION", 99)
    save(tmp_path, make(5), keep=1)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="another version"):
        load_newest(tmp_path)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """The next one waits for it, and so does the end."""
    may_go_on, real = threading.Event(), checkpoint.save

    def slow(*arguments):
        assert may_go_on.wait(10)
        return real(*arguments)

    monkeypatch.setattr(checkpoint, "save", slow)
    with Writer(tmp_path, keep=5) as writer:
        writer.write(make(1))
        assert all_steps(tmp_path) == []  # and we are here
        may_go_on.set()
        writer.write(make(2))
        assert all_steps(tmp_path)[:1] == [1]
    assert all_steps(tmp_path) == [1, 2]


@pytest.mark.parametrize("checkpoints", [1, 2])
def test_what_went_wrong_in_writing_is_raised(tmp_path, monkeypatch, checkpoints):
    """In the end, or before the next is written."""

    def fail(*arguments):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(checkpoint, "save", fail)
    with pytest.raises(OSError, match="no space left"):
        write_all(tmp_path, checkpoints)
    assert all_steps(tmp_path) == []


def write_all(run: Path, count: int) -> None:
    with Writer(run, keep=5) as writer:
        for step in range(count):
            writer.write(make(step))
