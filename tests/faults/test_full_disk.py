"""A disk that is full: the file is named, what was whole stays whole, and with room again the same command finishes."""

import os
import shutil
from pathlib import Path

import pytest

from elektron.train.checkpoint import all_steps, folder_of, load
from faults.commands import Commands, Ended, Fate, Moment
from faults.conftest import contents, small_disk, verbs
from faults.counting import Faults


def told(ended: Ended, out: Path) -> None:
    """It says which file it could not write and what to do, and how it ended."""
    assert ended.code == 2, ended.said
    assert "Traceback" not in ended.said, ended.said
    last = " ".join(ended.said.split()).rpartition("elektron: ")[2]
    assert str(out) in last, ended.said
    assert "make room" in last, ended.said


def stands(out: Path) -> None:
    """Every checkpoint that is there is whole."""
    for step in all_steps(out):
        load(folder_of(out, step))


@pytest.mark.parametrize("verb", verbs("prepare", "finetune"))
def test_files_that_may_not_grow(verb, undisturbed, commands: Commands, faults: Faults):
    """Each file in turn is the first that is too long by a byte."""
    whole = undisturbed(verb)
    commands.done(*whole.words)
    sizes = sorted({path.stat().st_size for path in whole.out.rglob("*") if path.is_file()})
    for size in sizes if faults.is_full else faults.random.sample(sizes, 1):
        shutil.rmtree(whole.out)
        with faults.inject(f"full disk under {verb} (a limit of file sizes)"):
            told(commands.run(*whole.words, fate=Fate(file_bytes=size - 1)), whole.out)
            stands(whole.out)
            commands.done(*whole.words)
            faults.same(whole.contents, contents(whole.out))
    shutil.rmtree(whole.out)


@pytest.mark.parametrize("verb", verbs("export"))
def test_a_disk_with_little_room(verb, undisturbed, commands: Commands, faults: Faults):
    """Of which another process takes all but some bytes."""
    whole = undisturbed(verb)
    used = sum(map(len, whole.contents.values()))
    for _ in range(faults.times(1, 25)):
        disk = whole.out.parent
        with small_disk(disk), faults.inject(f"full disk under {verb} (a small disk)"):
            fill(disk, faults.random.randrange(4096, used))
            told(commands.run(*whole.words), whole.out)
            stands(whole.out)
            (disk / "other").unlink()
            commands.done(*whole.words)
            faults.same(whole.contents, contents(whole.out))


def test_a_disk_that_fills_up_later(undisturbed, commands: Commands, faults: Faults):
    """A run that was stopped on its way: the checkpoints that it had are there when the disk is full."""
    whole = undisturbed("pretrain")
    for _ in range(faults.times(1, 10)):
        disk = whole.out.parent
        with small_disk(disk), faults.inject("full disk under pretrain (that goes on)"):
            commands.start(*whole.words, fate=Fate(moment=Moment(5, ("step-00000012",)))).end()
            assert all_steps(whole.out) == [4, 8]
            fill(disk, faults.random.randrange(4096, 100_000))
            told(commands.run(*whole.words), whole.out)
            stands(whole.out)
            assert min(all_steps(whole.out)) >= 4
            (disk / "other").unlink()
            commands.done(*whole.words)
            faults.same(whole.contents, contents(whole.out))


def fill(disk: Path, leave: int) -> None:
    """Leave so many bytes, and the rest of a page."""
    free = os.statvfs(disk)
    with open(disk / "other", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_bsize - leave)
