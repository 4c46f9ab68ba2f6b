"""Workers that share nothing but a folder make what one process makes: real processes, really killed."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import documents
from elektron.data import prepare
from elektron.data.corpus import Piece
from elektron.data.files import UNFINISHED_FILE, locked
from elektron.data.prepare import ShardsConfig, Share, write_shards, write_share
from elektron.data.shards import INDEX, open_data
from elektron.data.storage import Local, storage
from elektron.verbs.prepare import Config, PrepareConfig
from elektron.verbs.prepare import prepare as prepare_verb

JOB = """
import sys
from elektron.data import prepare
from elektron.verbs.prepare import main
if __name__ == "__main__":
    prepare.BLOCK_BYTES = 20000
    main(sys.argv[1:])
"""
"""`elektron prepare` with blocks so small that a little text makes many."""
PATIENCE_SECONDS = 60


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(prepare, "BLOCK_BYTES", 4000)


def pieces():
    return [Piece(text, True) for text in documents(60)]


def work(folder: Path, tokenizer, worker: int, workers: int):
    share = Share(worker, workers)
    place = storage(folder, share.writer)
    with place.occupied():
        return write_share(pieces(), tokenizer, place, ShardsConfig(processes=1), share)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 1, 0, 2]])
def test_workers_in_any_order_make_what_one_makes(tmp_path, small_tokenizer, small_blocks, order):
    write_shards(pieces(), small_tokenizer, tmp_path / "one", ShardsConfig(processes=1))
    for worker in order[:-1]:
        done = work(tmp_path / "many", small_tokenizer, worker, 3)
        assert done.index is None
        assert done.missing > 0
        assert not (tmp_path / "many" / INDEX).exists()
    last = work(tmp_path / "many", small_tokenizer, order[-1], 3)
    assert last.index == open_data(tmp_path / "many").index
    assert last.missing == 0
    assert written(tmp_path / "many") == written(tmp_path / "one")


def test_a_worker_tokenises_its_own_blocks_alone(tmp_path, small_tokenizer, small_blocks):
    index = write_shards(pieces(), small_tokenizer, tmp_path / "one", ShardsConfig(processes=1))
    done = work(tmp_path / "many", small_tokenizer, 1, 3)
    own = {f"shard-{number:05d}.bin" for number in range(len(index.shards)) if number % 3 == 1}
    assert {path.name for path in (tmp_path / "many").glob("shard-*")} == own
    assert (done.shards, done.missing) == (len(own), len(index.shards) - len(own))


def test_more_workers_than_blocks(tmp_path, small_tokenizer):
    assert work(tmp_path, small_tokenizer, 1, 2).index is None
    assert work(tmp_path, small_tokenizer, 0, 2).index
    assert work(tmp_path, small_tokenizer, 1, 2).index


def test_a_damaged_or_foreign_shard_of_another_worker_is_not_indexed(tmp_path, small_tokenizer, small_blocks):
    work(tmp_path, small_tokenizer, 0, 2)
    shard = tmp_path / "shard-00000.bin"
    content = shard.read_bytes()
    for wrong in (content[:-1] + bytes([content[-1] ^ 1]), content[:-1], (tmp_path / "shard-00002.bin").read_bytes()):
        shard.write_bytes(wrong)
        done = work(tmp_path, small_tokenizer, 1, 2)
        assert (done.index, done.missing) == (None, 1)
    assert work(tmp_path, small_tokenizer, 0, 2).index
    assert open_data(tmp_path)


def test_workers_agree_on_a_tokenizer(tmp_path, small_tokenizer, byte_tokenizer, small_blocks):
    work(tmp_path, small_tokenizer, 0, 2)
    with pytest.raises(ValueError, match="another tokenizer.json"):
        work(tmp_path, byte_tokenizer, 1, 2)
    assert work(tmp_path, small_tokenizer, 1, 2).index
    with pytest.raises(ValueError, match="shards of another tokenizer"):
        work(tmp_path, byte_tokenizer, 1, 2)


def test_workers_go_on_with_the_tokenizer_of_a_corpus_that_has_grown(tmp_path):
    """One that is finished stays as it is; when the first worker has begun anew it has to be named to the others."""
    texts, out = tmp_path / "texts", tmp_path / "out"
    texts.mkdir()
    (texts / "a.txt").write_text("\n\n".join(documents(30)))
    config = PrepareConfig(vocab_size=100, processes=1)
    prepare_verb([str(texts)], out, config)
    trained = (out / "tokenizer.json").read_bytes()
    (texts / "b.txt").write_text("\n\n".join(documents(60, seed=1)))
    assert prepare_verb([str(texts)], out, config, Share(0, 2))
    (out / "shard-00000.bin").unlink()
    (out / INDEX).unlink()
    with pytest.raises(ValueError, match="pass --tokenizer") as refused:
        prepare_verb([str(texts)], out, config, Share(0, 2))
    (named,) = re.findall(r"--tokenizer (\S+);", str(refused.value))
    assert prepare_verb([str(texts)], out, replace(config, tokenizer=named), Share(0, 2))
    assert (out / "tokenizer.json").read_bytes() == trained


@pytest.mark.parametrize(("worker", "workers"), [(2, 2), (-1, 2), (1, 1), (0, 0)])
def test_workers_are_counted_from_0(worker, workers):
    with pytest.raises(ValueError, match="counted from 0"):
        Config(worker=worker, workers=workers)


def test_who_is_alone_and_workers_keep_out_of_each_other_s_way(tmp_path):
    alone, first, second = storage(tmp_path), storage(tmp_path, "0-of-2"), storage(tmp_path, "1-of-2")
    with first.occupied(), second.occupied(), pytest.raises(ValueError, match="in use"), alone.occupied():
        pass
    with locked(tmp_path), pytest.raises(ValueError, match="in use"), first.occupied():
        pass


def test_leavings_go_with_their_writer(tmp_path):
    def leave(writer: str, process: str) -> Path:
        path = tmp_path / f".shard-00001.bin.{writer}.{process}{UNFINISHED_FILE}"
        path.write_bytes(b"half")
        return path

    mine, others, eleventh = leave("1-of-12", "host-1"), leave("2-of-12", "host-1"), leave("11-of-12", "host-1")
    with Local(tmp_path, "1-of-12").occupied():
        assert (mine.exists(), others.exists(), eleventh.exists()) == (False, True, True)
    with Local(tmp_path).occupied():
        assert not list(tmp_path.glob(f".*{UNFINISHED_FILE}"))


class Corpus:
    """Text, a tokenizer for it, and what one process makes of both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "text.txt").write_text("\n\n".join(documents(3000)))
        (folder / "job.py").write_text(JOB)
        subprocess.run(self.command("whole"), check=True, stdout=subprocess.DEVNULL)
        self.whole = written(folder / "whole")

    def command(self, out: str, *flags: object) -> list[str]:
        words = ["--corpus", self.folder / "text.txt", "--out", self.folder / out, "--vocab-size", 128]
        return [sys.executable, *map(str, [self.folder / "job.py", *words, "--processes", 2, *flags])]

    def start(self, out: str, worker: int, workers: int) -> subprocess.Popen:
        flags = "--worker", worker, "--workers", workers
        return subprocess.Popen(self.command(out, *flags), stdout=subprocess.DEVNULL, start_new_session=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("workers"))


def kill(process: subprocess.Popen) -> None:
    """The worker and, as it takes its processes along, wait for them: what they still write is of this life."""
    process.kill()
    process.wait()
    deadline = time.time() + PATIENCE_SECONDS
    while _group_lives(process.pid):
        assert time.time() < deadline, "processes outlive their parent"
        time.sleep(0.01)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_at_once_train_one_tokenizer_and_write_one_folder(made):
    """All begin at the same moment, with nothing there; several may find themselves the last."""
    workers = [made.start("at-once", worker, 3) for worker in range(3)]
    assert [process.wait(PATIENCE_SECONDS) for process in workers] == [0, 0, 0]
    assert written(made.folder / "at-once") == made.whole


def test_killed_workers_are_run_again(made, request):
    """kill -9 when some of its shards are there, or none yet, and a little later; first one worker, then the other."""
    draw, killed, most = random.Random(0), 0, len(made.whole) // 4
    for round in range(25 if request.config.getoption("--faults", "short") == "full" else 1):
        out = f"killed-{round}"
        for worker in (0, 1):
            process = made.start(out, worker, 2)
            shards = len(list((made.folder / out).glob("shard-*.bin"))) + draw.randrange(most)
            while len(list((made.folder / out).glob("shard-*.bin"))) < shards and process.poll() is None:
                time.sleep(0.002)
            time.sleep(draw.uniform(0, 0.1))
            killed += process.poll() is None
            kill(process)
        workers = [made.start(out, worker, 2) for worker in (1, 0)]
        assert [process.wait(PATIENCE_SECONDS) for process in workers] == [0, 0]
        assert written(made.folder / out) == made.whole
    assert killed, "all had ended before they were killed"


def test_one_process_of_a_worker_is_killed(made):
    """The worker says so, and does the rest when it is run again."""
    command = made.command("child", "--worker", 0, "--workers", 2)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not list((made.folder / "child").glob("shard-*.bin")):
        assert process.poll() is None
        time.sleep(0.005)
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        with contextlib.suppress(ProcessLookupError):  # the pool ends the others when one is gone
            os.kill(int(child), signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "a worker process died" in said
    assert [made.start("child", worker, 2).wait(PATIENCE_SECONDS) for worker in (0, 1)] == [0, 0]
    assert written(made.folder / "child") == made.whole
