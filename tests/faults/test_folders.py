"""Folders that cannot be written, are taken away or are wanted by two; and clocks that jump."""

import math
import shutil
import subprocess
import time

import pytest

from elektron.train.checkpoint import all_steps, folder_of, load
from elektron.train.metrics import read
from faults.commands import Commands, Ended, Fate, Moment
from faults.conftest import contents, small_disk, verbs
from faults.counting import Faults


def refused(ended: Ended, *words: object) -> None:
    assert ended.code == 2, ended.said
    assert "Traceback" not in ended.said, ended.said
    last = ended.said.rpartition("elektron: ")[2]
    assert all(str(word) in last for word in words), ended.said


@pytest.mark.parametrize("verb", verbs("pretrain"))
def test_a_disk_that_is_read_only(verb, undisturbed, commands: Commands, faults: Faults):
    """The folder is there, or is not; either way nothing can be written."""
    whole = undisturbed(verb)
    for is_there in (True, False):
        with small_disk(whole.out.parent), faults.inject(f"a read-only disk under {verb}"):
            if is_there:
                whole.out.mkdir()
            subprocess.run(["mount", "-o", "remount,ro", whole.out.parent], check=True)
            refused(commands.run(*whole.words), whole.out, "Read-only", "choose another folder")


def test_a_finished_run_on_a_read_only_disk(undisturbed, commands: Commands, faults: Faults, tmp_path):
    """It can be read from there, if not written to."""
    whole = undisturbed("pretrain")
    with small_disk(whole.out.parent), faults.inject("a read-only disk under a finished run"):
        commands.done(*whole.words)
        subprocess.run(["mount", "-o", "remount,ro", whole.out.parent], check=True)
        commands.done("export", whole.out, "--to", tmp_path / "out")
        for words in (["report", whole.out], ["export", whole.out], whole.words):
            refused(commands.run(*words), whole.out, "Read-only")
        faults.same(whole.contents, contents(whole.out))


def test_a_run_folder_that_freezes(undisturbed, commands: Commands, faults: Faults):
    """Its checkpoints can be written no more, from the middle of one on: those that were whole are."""
    whole = undisturbed("pretrain")
    folder = whole.out / "checkpoints"
    moment = Moment(3, ("step-00000012",), "freeze", folder)
    with faults.inject("a run folder that becomes read-only"):
        ended = commands.run(*whole.words, fate=Fate(moment=moment))
        if subprocess.run(["chattr", "-i", folder], capture_output=True).returncode:
            shutil.rmtree(whole.out)
            pytest.skip("files cannot be made immutable here")
        refused(ended, folder, "the newest whole checkpoint is step 8", "make it writable")
        load(folder_of(whole.out, 8))
        commands.done(*whole.words)
        faults.same(whole.contents, contents(whole.out))
    shutil.rmtree(whole.out)


@pytest.mark.parametrize("verb", verbs("pretrain"))
def test_a_folder_that_vanishes(verb, undisturbed, commands: Commands, faults: Faults):
    """Moved away under a command that writes to it, which ends, writes nothing in its place, and goes on when it is
    back."""
    whole = undisturbed(verb)
    place = str(whole.out), "step-00000012" if verb == "pretrain" else ""
    for number in range(1, faults.times(2, 8)):
        moment = Moment(number, place, "vanish", whole.out)
        with faults.inject(f"a folder that vanishes under {verb}"):
            ended = commands.run(*whole.words, fate=Fate(moment=moment))
            if ended.code or verb == "pretrain":  # else it had written everything
                refused(ended, whole.out)
            away = whole.out.with_name("away")
            if whole.out.exists() and verb == "prepare":  # it had written nothing yet but its tokenizer
                shutil.rmtree(away)
                whole.out.rename(away)
            assert not whole.out.exists()
            for step in all_steps(away):
                load(folder_of(away, step))
            away.rename(whole.out)
            commands.done(*whole.words)
            faults.same(whole.contents, contents(whole.out))
        shutil.rmtree(whole.out)


@pytest.mark.parametrize("verb", verbs("pretrain"))
def test_two_in_one_folder(verb, undisturbed, commands: Commands, faults: Faults):
    """The second is told so and leaves; the first does not notice."""
    whole = undisturbed(verb)
    with faults.inject(f"two of {verb} in one folder"):
        first = commands.start(*whole.words, fate=Fate(moment=Moment(1, (str(whole.out),), "wait")))
        while not any(whole.out.glob("*")):
            time.sleep(0.01)
        refused(commands.run(*whole.words), f"{whole.out} is in use by another process")
        ended = first.end()
        assert ended.code == 0, ended.said
        faults.same(whole.contents, contents(whole.out))
    shutil.rmtree(whole.out)


@pytest.mark.parametrize("verb", verbs("pretrain"))
def test_a_clock_that_jumps(verb, undisturbed, commands: Commands, faults: Faults):
    """Decades to and fro: what is learned does not know the time, and what is recorded stays a number."""
    whole = undisturbed(verb)
    with faults.inject(f"a clock that jumps under {verb}"):
        ended = commands.run(*whole.words, fate=Fate(clock_jumps=True))
        assert ended.code == 0, ended.said
        faults.same(whole.contents, contents(whole.out))
        if verb == "pretrain":
            for record in read(whole.out):
                numbers = [value for value in record.get("clock", {}).values() if isinstance(value, float)]
                assert all(math.isfinite(value) and value >= 0 for value in numbers)
    shutil.rmtree(whole.out)
