"""Corpora and shards behind URLs: a real server that speaks S3, on this machine."""

import gzip
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from moto.server import ThreadedMotoServer
from pyarrow.fs import LocalFileSystem

from conftest import documents
from elektron.data import corpus, prepare
from elektron.data.cache import VARIABLE
from elektron.data.corpus import Piece, ReadingConfig
from elektron.data.prepare import ShardsConfig, Share, write_shards
from elektron.data.shards import INDEX, open_data, read_index
from elektron.data.storage import storage
from elektron.data.tokenizer import TokenizerConfig, load
from elektron.verbs.prepare import PrepareConfig
from elektron.verbs.prepare import prepare as prepare_verb
from elektron.verbs.pretrain import configure, pretrain
from elektron.verbs.runs import glance_at_data, open_with_data

PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def server():
    """Where S3 is; processes that tests start find it too."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        fsspec.filesystem("s3").mkdir("bucket")
        yield server
    server.stop()


@pytest.fixture
def bucket(server, tmp_path, monkeypatch):
    """A folder of its own for each test, and an empty cache."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return f"s3://bucket/{tmp_path.name}"


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(prepare, "BLOCK_BYTES", 4000)


def put(url: str, content: bytes) -> None:
    fsspec.filesystem("s3").pipe_file(url, content)


def written(place: str | Path) -> dict[str, bytes]:
    folder = storage(place)
    return {name: folder.read(name) for name in sorted(folder.names())}


def as_pieces(texts):
    return [Piece(text, True) for text in texts]


def texts_of(*specs: str) -> list[str]:
    return [piece.text for piece in corpus.pieces(corpus.sources(specs), ReadingConfig())]


def test_a_corpus_is_read_from_urls(bucket, tmp_path):
    (tmp_path / "in").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["third"]}), tmp_path / "in" / "c.parquet")
    (tmp_path / "in" / "a.txt").write_text("first\n\nstill first's file")
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": "second"}).encode()))
    pyarrow.OSFile(str(tmp_path / "in" / "d.txt.zst"), "wb").close()
    with pyarrow.output_stream(tmp_path / "in" / "d.txt.zst", compression="zstd") as file:
        file.write(b"fourth")
    for path in (tmp_path / "in").iterdir():
        put(f"{bucket}/in/{path.name}", path.read_bytes())
    put(f"{bucket}/in/.hidden.txt", b"not this")
    put(f"{bucket}/in/notes.md", b"nor this")
    there, here = corpus.sources([f"{bucket}/in"]), corpus.sources([str(tmp_path / "in")])
    assert [Path(url).name for url in there] == [Path(path).name for path in here]
    assert texts_of(f"{bucket}/in/") == texts_of(str(tmp_path / "in"))
    assert texts_of(f"{bucket}/in/*.txt") == texts_of(f"{bucket}/in/a.txt") == ["first", "still first's file"]
    assert texts_of(f"file://{tmp_path}/in/a.txt") == ["first", "still first's file"]
    assert corpus.estimated_bytes(there) == corpus.estimated_bytes(here) > 0


def test_what_cannot_be_read_is_named(bucket, monkeypatch):
    for spec, what in {
        f"{bucket}/nowhere": "no such corpus",
        f"{bucket}/*.txt": "no such corpus",
        "nowhere://bucket/text": "nowhere://bucket/text",
    }.items():
        with pytest.raises(ValueError, match=what.replace("*", r"\*")):
            corpus.sources([spec])
    put(f"{bucket}/bad.txt.gz", gzip.compress(b"text " * 1000)[:-20])
    with pytest.raises(ValueError, match=r"bad\.txt\.gz: damaged"):
        texts_of(f"{bucket}/bad.txt.gz")
    with pytest.raises(ValueError, match="holds no prepared data"):
        open_data(bucket)


@pytest.mark.parametrize(
    ("url", "package", "hint"),
    [("s3://bucket/x", "s3fs", "pip install 'elektron[s3]'"), ("gs://bucket/x", "gcsfs", "pip install gcsfs")],
)
def test_a_missing_package_is_named(url, package, hint):
    script = (
        f"import sys; sys.modules[{package!r}] = None\nfrom elektron.data.shards import open_data\nopen_data({url!r})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert hint in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith(f"ValueError: {url}")


def test_a_server_that_is_not_there_is_told_of(monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        fsspec.filesystem("s3").clear_instance_cache()
        with pytest.raises(OSError, match="cannot reach s3://bucket/x"):
            open_data("s3://bucket/x")
    fsspec.filesystem("s3").clear_instance_cache()


def test_shards_behind_a_url_are_those_of_a_folder(bucket, tmp_path, small_tokenizer, small_blocks):
    texts, config = documents(60), ShardsConfig(held_out=0.1, processes=1)
    for count in (60, 40):  # fewer shards: what is of no use any more goes
        here = write_shards(as_pieces(texts[:count]), small_tokenizer, tmp_path / "here", config)
        assert write_shards(as_pieces(texts[:count]), small_tokenizer, f"{bucket}/data", config) == here
        assert written(f"{bucket}/data") == written(tmp_path / "here")
    near, far = open_data(tmp_path / "here"), open_data(f"{bucket}/data")
    assert far.index == near.index
    for one, other in ((near.train, far.train), (near.held, far.held)):
        assert np.array_equal(one.read(np.array([0]), one.tokens), other.read(np.array([0]), one.tokens))
        assert np.array_equal(one.ends(one.tokens), other.ends(one.tokens))


def test_a_tokenizer_behind_a_url(bucket, small_tokenizer):
    put(f"{bucket}/tokenizer.json", small_tokenizer.json.encode())
    assert load(f"{bucket}/tokenizer.json", TokenizerConfig()).hash == small_tokenizer.hash
    with pytest.raises(ValueError, match="no such tokenizer"):
        load(f"{bucket}/other.json", TokenizerConfig())
    put(f"{bucket}/bad.json", b"{")
    with pytest.raises(ValueError, match=r"bad\.json"):
        load(f"{bucket}/bad.json", TokenizerConfig())


def test_a_second_opening_downloads_nothing(bucket, tmp_path, small_tokenizer, small_blocks, monkeypatch):
    index = write_shards(as_pieces(documents(60)), small_tokenizer, f"{bucket}/data", ShardsConfig(processes=1))
    open_data(f"{bucket}/data")
    cached = tmp_path / "cache" / "data"
    times = {path.name: path.stat().st_mtime_ns for path in cached.iterdir()}
    assert set(times) == {f"{shard.sha256}.bin" for shard in index.shards}
    for shard in index.shards:
        fsspec.filesystem("s3").rm_file(f"{bucket}/data/{shard.file}")
    open_data(f"{bucket}/data")
    assert {path.name: path.stat().st_mtime_ns for path in cached.iterdir()} == times
    victim = cached / f"{index.shards[0].sha256}.bin"
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data/shard-00000\.bin is missing"):
        open_data(f"{bucket}/data")


def test_a_damaged_copy_is_replaced_and_a_damaged_original_refused(bucket, tmp_path, small_tokenizer):
    index = write_shards(as_pieces(documents(60)), small_tokenizer, f"{bucket}/data", ShardsConfig(processes=1))
    open_data(f"{bucket}/data")
    (copy,) = (tmp_path / "cache" / "data").iterdir()
    content = copy.read_bytes()
    copy.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    open_data(f"{bucket}/data")
    assert copy.read_bytes() == content
    copy.unlink()
    put(f"{bucket}/data/{index.shards[0].file}", content[:-1])
    with pytest.raises(ValueError, match=r"data/shard-00000\.bin: damaged"):
        open_data(f"{bucket}/data")
    assert not copy.exists()


@pytest.mark.parametrize(
    ("field", "name"), [("file", "../outside.bin"), ("sha256", "../outside"), ("sha256", "/outside")]
)
def test_an_index_cannot_name_files_of_other_folders(bucket, tmp_path, small_tokenizer, field, name):
    write_shards(as_pieces(documents(60)), small_tokenizer, f"{bucket}/data", ShardsConfig(processes=1))
    record = json.loads(storage(f"{bucket}/data").read(INDEX))
    record["shards"][0][field] = name
    put(f"{bucket}/data/{INDEX}", json.dumps(record).encode())
    before = sorted(tmp_path.parent.rglob("*outside*"))
    with pytest.raises(ValueError, match=r"index\.json"):
        open_data(f"{bucket}/data")
    assert sorted(tmp_path.parent.rglob("*outside*")) == before


OPEN = """
import sys
from elektron.data.shards import open_data
print(open_data(sys.argv[1]).train.tokens)
"""


def test_processes_that_open_at_once_download_once(bucket, tmp_path, small_tokenizer, small_blocks, caplog):
    """By the server's own log: one GET for each shard, however many processes want it."""
    index = write_shards(as_pieces(documents(60)), small_tokenizer, f"{bucket}/data", ShardsConfig(processes=1))
    command = [sys.executable, "-c", OPEN, f"{bucket}/data"]
    caplog.clear()
    with caplog.at_level("INFO", logger="werkzeug"):
        openers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        said = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in openers]
    assert said == [f"{index.train_tokens}\n"] * 3
    fetched = re.findall(r"GET /\S*/(shard-\d+\.bin) ", "\n".join(caplog.messages))
    assert sorted(fetched) == [shard.file for shard in index.shards]
    copies = [path.name for path in (tmp_path / "cache" / "data").iterdir()]
    assert sorted(copies) == sorted(f"{shard.sha256}.bin" for shard in index.shards)


JOB = """
import sys
from elektron.data import prepare
from elektron.verbs.prepare import main
if __name__ == "__main__":
    prepare.BLOCK_BYTES = 20000
    main(sys.argv[1:])
"""
"""`elektron prepare` with blocks so small that a little text makes many."""


def test_workers_killed_and_run_again_make_what_one_makes(bucket, tmp_path):
    """From a URL to a URL, kill -9 at random moments."""
    put(f"{bucket}/in/text.txt", "\n\n".join(documents(2000)).encode())
    (tmp_path / "job.py").write_text(JOB)

    def start(out: str, worker: int, workers: int) -> subprocess.Popen:
        flags = ["--corpus", f"{bucket}/in", "--out", out, "--vocab-size", "128", "--processes", "1"]
        flags += ["--worker", str(worker), "--workers", str(workers)]
        command = [sys.executable, str(tmp_path / "job.py"), *flags]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)

    begun = time.perf_counter()
    assert start(str(tmp_path / "whole"), 0, 1).wait(PATIENCE_SECONDS) == 0
    seconds, draw = time.perf_counter() - begun, random.Random(0)
    for worker in (0, 1):
        process = start(f"{bucket}/data", worker, 2)
        time.sleep(draw.uniform(0.5, 1) * seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    workers = [start(f"{bucket}/data", worker, 2) for worker in (1, 0)]
    assert [process.wait(PATIENCE_SECONDS) for process in workers] == [0, 0]
    assert written(f"{bucket}/data") == written(tmp_path / "whole")


def test_a_run_trains_from_a_url_and_is_evaluated_there(bucket, tmp_path, text_file, monkeypatch):
    put(f"{bucket}/in.txt", text_file.read_bytes())
    flags = (
        f"--corpus {bucket}/in.txt --data {bucket}/data --run {tmp_path / 'run'} --model.layers 1 --model.width 32 "
        "--model.heads 2 --model.feedforward-width 64 --model.embedding-width 16 --model.positions 32 "
        "--prepare.vocab-size 128 --prepare.processes 1 --prepare.held-out 0.05 --train.phases 2 16 4 "
        "--schedule.warmup-steps 1 --device cpu"
    ).split()
    assert pretrain(configure(flags, "elektron pretrain", "")) == 0
    opened, data, length = open_with_data(tmp_path / "run", "", 0)
    assert (opened.step, length) == (2, 16)
    assert data.index == read_index(f"{bucket}/data")
    glanced = glance_at_data(configure(flags, "elektron plan", ""))
    assert glanced
    assert glanced.index == data.index


def test_standard_input_has_one_reader_and_is_kept_here(bucket, tmp_path):
    with pytest.raises(ValueError, match="one reader"):
        prepare_verb(["-"], tmp_path / "out", PrepareConfig(), Share(0, 2))
    with pytest.raises(ValueError, match="standard input is kept in --out"):
        prepare_verb(["-"], f"{bucket}/out", PrepareConfig())


def test_memory_is_one_process_s_own(small_tokenizer):
    with pytest.raises(ValueError, match="memory is one process's own"):
        write_shards(as_pieces(documents(5)), small_tokenizer, "memory://data", ShardsConfig(processes=1))


class _Renaming(ArrowFSWrapper):
    """What fsspec reads and writes hdfs:// with, over this machine's files."""

    def __init__(self, **options: object) -> None:
        super().__init__(LocalFileSystem(), **options)


def test_file_systems_that_show_unfinished_files_are_written_aside(tmp_path, monkeypatch):
    fsspec.register_implementation("renaming", _Renaming, clobber=True)
    folder = storage(f"renaming://{tmp_path}/new/data")
    assert folder.names() == []
    seen = []
    real = _Renaming.pipe_file
    monkeypatch.setattr(_Renaming, "pipe_file", lambda self, path, *rest: (seen.append(path), real(self, path, *rest)))
    for content in (b"first", b"second"):
        folder.write("file", content[:2], content[2:])
        assert folder.read("file") == (tmp_path / "new" / "data" / "file").read_bytes() == content
    assert all(Path(path).name.startswith(".file.") for path in seen)
    assert len(seen) == 2
    assert folder.names() == ["file"]
    folder.remove("file")
    folder.remove("file")
    assert not folder.exists("file")
    with pytest.raises(FileNotFoundError):
        folder.read("file")
