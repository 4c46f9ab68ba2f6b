"""kill -9 at any moment: the same command goes on, and ends with the same bytes as if nothing had happened."""

import shutil
import signal

import pytest

from elektron.train.checkpoint import FOLDER, all_steps
from faults.commands import Commands, Fate, Moment
from faults.conftest import VERBS, contents, verbs
from faults.counting import Faults


@pytest.mark.parametrize("verb", VERBS)
def test_killed_at_random_moments(verb, undisturbed, commands: Commands, faults: Faults):
    """Over all the time that the command takes; every third is killed once more on its way back."""
    whole = undisturbed(verb)
    for number in range(faults.times(1, 50)):
        with faults.inject(f"kill -9 of {verb}"):
            for _ in range(2 if number % 3 == 2 else 1):
                ended = commands.killed(*whole.words, after=faults.random.uniform(0, whole.seconds))
                assert ended.code in (-signal.SIGKILL, 0), ended.said
            learned = {path: path.read_bytes() for path in whole.out.glob("cola/seed-*/result.json")}
            commands.done(*whole.words)
            faults.same(whole.contents, contents(whole.out))
            assert all(path.read_bytes() == result for path, result in learned.items()), "learned again"
        shutil.rmtree(whole.out)


@pytest.mark.parametrize("verb", verbs("pretrain"))
def test_killed_at_the_syncs_and_renames(verb, undisturbed, commands: Commands, faults: Faults):
    """Where a file or a folder is about to become whole; of pretrain, while the checkpoint of step 8 is written."""
    whole, moment = undisturbed(verb), 0
    place = str(whole.out), "step-00000008" if verb == "pretrain" else ""
    for moment in range(1, 1000) if faults.is_full else [faults.random.randrange(1, 9)]:
        ended = commands.start(*whole.words, fate=Fate(moment=Moment(moment, place))).end()
        if ended.code == 0:  # there are fewer of them
            shutil.rmtree(whole.out)
            break
        with faults.inject(f"kill -9 at a sync or rename of {verb}"):
            assert ended.code == -signal.SIGKILL, ended.said
            assert all_steps(whole.out) or verb != "pretrain"
            commands.done(*whole.words)
            faults.same(whole.contents, contents(whole.out))
            assert not any(path.name.startswith(".") for path in (whole.out / FOLDER).glob("*"))
        shutil.rmtree(whole.out)
    assert moment > 8 or not faults.is_full
