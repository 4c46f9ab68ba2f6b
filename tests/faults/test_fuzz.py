"""Corpora and requests that nobody would write: read, or refused with a reason; no crash, no hang."""

import multiprocessing
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from elektron.data import corpus
from elektron.data.corpus import ReadingConfig
from faults.commands import Commands
from faults.counting import Faults
from faults.fuzz import body, corpus_file

PATIENCE_SECONDS = 30
"""For one file or one answer."""


def read_all(paths: list[Path], results: Any) -> None:
    """In a process of its own, which may hang or crash: the complaint about each file, if there is one."""
    for number, path in enumerate(paths):
        config = ReadingConfig(errors="replace" if number % 3 == 0 else "strict")
        try:
            for _ in corpus.pieces(corpus.sources([str(path)]), config):
                pass
            results.send("")
        except ValueError as error:
            results.send(f"{error}")
        except BaseException as error:
            results.send(f"{type(error).__name__}, and no ValueError: {error}")


def complaints(paths: list[Path]) -> list[str]:
    context = multiprocessing.get_context("forkserver")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=read_all, args=(paths, writer))
    process.start()
    writer.close()
    found = []
    try:
        for path in paths:
            assert reader.poll(PATIENCE_SECONDS), f"{path}: hangs"
            try:
                found.append(reader.recv())
            except EOFError:
                raise AssertionError(f"{path}: crashed the process") from None
    finally:
        process.kill()
        process.join()
    return found


def test_corpora(commands: Commands, faults: Faults, tmp_path):
    """Through the reader; and through `elektron prepare`, the good ones together and some of the bad."""
    (tmp_path / "good").mkdir()
    paths = []
    for number in range(faults.times(100, 1000)):
        ending, content = corpus_file(faults.random)
        paths.append(tmp_path / f"file-{number}{ending}")
        paths[-1].write_bytes(content)
    bad = []
    for path, complaint in zip(paths, complaints(paths), strict=True):
        with faults.inject("a fuzzed corpus file"):
            assert path.name in complaint or not complaint, f"{path}: {complaint}"
        if complaint:
            bad.append(path)
        else:
            path.rename(tmp_path / "good" / path.name)
    assert len(paths) / 10 < len(bad) < len(paths) * 9 / 10
    flags = "--vocab-size", 128, "--processes", 1, "--errors", "replace", "--out"
    commands.done("prepare", "--corpus", tmp_path / "good", *flags, tmp_path / "out")
    for path in faults.random.sample(bad, faults.times(4, 60)):
        with faults.inject("a fuzzed corpus file given to prepare"):
            ended = commands.run("prepare", "--corpus", path, *flags, tmp_path / "other")
            assert ended.code in (0, 2), ended.said
            assert "Traceback" not in ended.said, ended.said
            assert not ended.code or path.name in ended.said or "corpus is" in ended.said, ended.said


@pytest.fixture(scope="module")
def server(untaught: Path, tmp_path_factory) -> Iterator[str]:
    """`elektron page` as its user has it, without a limit of how often it may be asked."""
    said = tmp_path_factory.mktemp("page") / "said.txt"
    words = "--port", "0", "--limits.rate", "1e6", "--limits.burst", "1000000"
    with said.open("w") as file:
        command = [sys.executable, "-m", "elektron", "page", "--model", str(untaught), *words]
        process = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ)
    try:
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", said.read_text())):
            assert process.poll() is None, said.read_text()
            time.sleep(0.05)
        yield found[0]
        assert process.poll() is None, said.read_text()
        assert "while answering" not in said.read_text(), said.read_text()
    finally:
        process.kill()
        process.wait()


def lives(client: httpx.Client) -> bool:
    return len(client.post("/api/detect", json={"text": "the cat"}).json()["words"]) == 2


def test_bodies(server: str, faults: Faults):
    with httpx.Client(base_url=server, timeout=PATIENCE_SECONDS) as client:
        statuses = []
        for _ in range(faults.times(100, 1000)):
            content, path = body(faults.random), faults.random.choice(["/api/detect", "/api/suggest"])
            with faults.inject("a fuzzed HTTP body"):
                answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
                statuses.append(answer.status_code)
                assert 200 <= answer.status_code < 500, f"{content[:200]}: {answer.text}"
                assert "words" in answer.json() or answer.json()["error"]["message"], content
        assert 200 in statuses
        assert {400, 422} <= set(statuses)
        assert lives(client)


LINES = (
    b"POST /api/detect HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b'Content-Length: 19\r\n\r\n{"text": "the cat"}'
)


def test_broken_http(server: str, faults: Faults):
    """Below the body: lines, headers and lengths that are no HTTP. A server may hang up, but not on the next one."""
    host, port = server.removeprefix("http://").split(":")
    place = host, int(port)
    with httpx.Client(base_url=server, timeout=PATIENCE_SECONDS) as client:
        for _ in range(faults.times(20, 200)):
            content = bytearray(LINES)
            for _ in range(faults.random.randrange(1, 4)):
                content[faults.random.randrange(len(content))] = faults.random.randrange(256)
            with (
                faults.inject("a fuzzed HTTP request"),
                socket.create_connection(place, 10) as line,
            ):
                line.sendall(bytes(content))
                line.shutdown(socket.SHUT_WR)
                answer = line.recv(1 << 16)
                assert re.match(rb"HTTP/1\.[01] [24]\d\d ", answer) or not answer, answer
        assert lives(client)
