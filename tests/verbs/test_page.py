"""`elektron page` as a process: what it says, what it does not, and where it refuses to serve."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from elektron.cli import main

TOKEN = "a-token-of-some-length"
MARKER = "xyzzymarker"


@pytest.fixture
def start(untaught, tmp_path):
    """A server on a free port: its process, its address and the file that has all it says."""
    begun: list[subprocess.Popen] = []

    def run(*words: str, **environment: str) -> tuple[subprocess.Popen, str, Path]:
        command = [sys.executable, "-m", "elektron", "page", "--model", str(untaught), "--port", "0", *words]
        said = tmp_path / "said.txt"
        with said.open("w") as file:
            begun.append(subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | environment))
        for _ in range(600):
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", said.read_text())
            if found:
                return begun[-1], found[0], said
            time.sleep(0.1)
        raise AssertionError(said.read_text())

    yield run
    for process in begun:
        process.kill()
        process.wait()


def test_nothing_of_what_is_sent_is_logged(start):
    process, address, file = start(ELEKTRON_TOKEN=TOKEN)
    known = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=address, headers=known) as client:
        assert client.post("/api/detect", json={"text": f"the cat {MARKER}"}).status_code == 200
        for body in (f'{{"text": "{MARKER}', f'{{"text": ["{MARKER}"]}}', f'{{"{MARKER}": 1}}', MARKER * 100_000):
            headers = {"Content-Type": "application/json"}
            assert 400 <= client.post("/api/detect", content=body, headers=headers).status_code < 500
        assert client.get(f"/{MARKER}?text={MARKER}").status_code == 404
        assert client.get("/api/model", headers={"Authorization": f"Bearer {MARKER}"}).status_code == 401
        assert client.post("/api/suggest", json={"text": MARKER, "words": [1]}).status_code == 422
    host, port = address.removeprefix("http://").strip("/").split(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(f"{MARKER} \x00\x01 nonsense\r\n\r\n".encode())
        assert b" 400 " in line.recv(1000)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    said = file.read_text()
    assert MARKER not in said
    assert TOKEN not in said
    assert "Traceback" not in said
    assert "#token=TOKEN" in said
    assert "Ctrl-C ends it." in said


@pytest.mark.parametrize(
    ("words", "environment", "sentence"),
    [
        (["--host", "0.0.0.0"], {}, "--host 0.0.0.0 is reached by others than this machine"),
        (["--host", "::"], {}, "say --public and set ELEKTRON_TOKEN"),
        (["--host", "0.0.0.0", "--public"], {}, "--public needs a token. If they are to be let in"),
        (["--public"], {}, "--public needs a token"),
        (["--host", "0.0.0.0", "--token", TOKEN], {}, "say --public and set ELEKTRON_TOKEN"),
        (["--host", "0.0.0.0", "--public"], {"ELEKTRON_TOKEN": "short"}, "at least 16 characters"),
        (["--threshold", "3"], {}, "--threshold is a probability"),
        (["--port", "70000"], {}, "there are ports from 0 to 65535"),
        (["--limits.rate", "0"], {}, "--limits.rate is more than 0"),
        (["--model", "nowhere", "--port", "0"], {}, "nowhere is neither a run nor a Hugging Face folder"),
    ],
)
def test_refusals_to_start(words, environment, sentence, untaught, monkeypatch, capsys):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = refused(monkeypatch, capsys, "--model", str(untaught), *words)
    assert sentence in said
    assert "short" not in said


def refused(monkeypatch, capsys, *words: str) -> str:
    """What is said when it does not start."""
    monkeypatch.setattr(sys, "argv", ["elektron", "page", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_a_port_that_is_taken(untaught, monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        said = refused(monkeypatch, capsys, "--model", str(untaught), "--port", port)
    assert f"port {port}: Address already in use; --port 0 takes one that is free" in said


def test_without_its_extra(untaught, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'elektron[page]'" in refused(monkeypatch, capsys, "--model", str(untaught))


def test_what_breaks_is_told_by_its_kind_alone(caplog):
    """An exception may speak with the words of a text; the log has its name and the place."""
    from fastapi import FastAPI
    from starlette.testclient import TestClient

    from elektron.page.refusals import Catch

    app = FastAPI()

    @app.get("/")
    def break_down() -> None:
        raise RuntimeError(MARKER)

    app.add_middleware(Catch)
    answer = TestClient(app).get("/")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "failed"
    assert MARKER not in answer.text + caplog.text.replace("raise RuntimeError(MARKER)", "")
    assert "RuntimeError while answering" in caplog.text
