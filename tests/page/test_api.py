"""The API under the page: the same answers as `elektron detect`, kind refusals, and a server that lives on."""

import asyncio
import json
import random
import re
import subprocess
import sys
import time
from functools import partial

import httpx
import pytest

from conftest import sentences
from elektron.page.app import STATIC
from elektron.page.batching import Batcher
from elektron.page.doors import Doors
from elektron.page.terms import Limits

HARD = [
    "The old cat sees a dog.",
    "",
    " \n\t ",
    "two lines\nof a cat\r\nand a dog\ttab",
    "emoji \U0001f469\u200d\U0001f692 cat \U0001d49c\U0001d4b7 dog \U0001f600\U0001f600 fish",
    "שלום the cat مرحبا bird",
    "half \ud83d a pair \ude00 and nothing \x00 here, caf\u0065\u0301",
    "longer than the model reads at once: " + "the cat and the dog and the bird and the fish " * 12,
    "unbroken" * 300,
]
JSON = {"Content-Type": "application/json"}


def ask(client: httpx.Client, path: str, **body: object) -> dict:
    answer = client.post(path, content=json.dumps(body).encode(), headers=JSON)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_answers_are_those_of_detect(client, untaught, tmp_path):
    records = tmp_path / "texts.jsonl"
    records.write_text("".join(json.dumps({"text": text}) + "\n" for text in HARD))
    command = [sys.executable, "-m", "elektron", "detect", str(records), "--json", "--threshold", "0", "--suggest", "4"]
    done = subprocess.run([*command, "--model", str(untaught)], capture_output=True, check=True)
    expected = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(len(record["words"]) for record in expected) > 100
    for text, record in zip(HARD, expected, strict=True):
        found = ask(client, "/api/detect", text=text)
        assert found["threshold"] == 0.8
        assert [(w["start"], w["stop"]) for w in found["words"]] == [(w["start"], w["stop"]) for w in record["words"]]
        chances = [word["replaced"] for word in record["words"]]
        assert [word["replaced"] for word in found["words"]] == pytest.approx(chances, abs=1e-5)
        some = record["words"][:64]
        better = ask(client, "/api/suggest", text=text, words=[word["start"] for word in some], count=4)["words"]
        assert [[s["text"] for s in w["suggestions"]] for w in better] == [
            [s[0] for s in w.get("suggestions", [])] for w in some
        ]


def test_facts(client):
    facts = client.get("/api/model").json()
    assert (facts["name"], facts["layers"], facts["width"], facts["positions"]) == ("untaught", 2, 32, 32)
    assert facts["suggests"] is True
    assert facts["calibration"] is None
    assert facts["parameters"] > 1000
    assert client.get("/health").json() == {"status": "ok"}


def test_the_api_is_documented(client):
    told = client.get("/openapi.json").json()
    assert set(told["paths"]) == {"/api/detect", "/api/suggest", "/api/model", "/health"}
    for path in ("/api/detect", "/api/suggest"):
        responses = told["paths"][path]["post"]["responses"]
        for status in ("400", "401", "403", "408", "413", "415", "422", "429", "503"):
            reference = responses[status]["content"]["application/json"]["schema"]["$ref"]
            assert reference.endswith("/Problem")
    for name, shape in told["components"]["schemas"].items():
        if name in ("DetectRequest", "SuggestRequest", "DetectedWord", "Detected"):
            assert all("description" in field for field in shape["properties"].values()), name
    assert "code points" in told["info"]["description"]
    page = (STATIC / "api.html").read_text()
    for path in told["paths"]:
        assert path in page
    assert client.get("/docs").status_code == 404


def test_pages_are_whole_and_load_nothing_from_elsewhere(client):
    front = client.get("/")
    assert front.headers["content-type"].startswith("text/html")
    policy = front.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for path in STATIC.iterdir():
        found = client.get(f"/{path.name}")
        assert found.status_code == 200
        assert found.headers["x-content-type-options"] == "nosniff"
        others = set(re.findall(r"https?://[^\s\"'<)]+", found.text)) - {"http://www.w3.org/2000/svg"}
        assert all(other.startswith("http://127.0.0.1:8391/") for other in others), path
        for named in re.findall(r'(?:src|href)="([^"#:]+)"|from "\./([^"]+)"', found.text):
            assert client.get(f"/{''.join(named)}").status_code == 200


MARKER = "xyzzymarker"
REFUSED = {
    "malformed": ("/api/detect", b'{"text": "xyzzymarker', JSON, 400, "malformed"),
    "binary": ("/api/detect", b"\x00\xff\xfe\x80xyzzymarker" * 50, JSON, 400, "malformed"),
    "nothing": ("/api/detect", b"", JSON, 422, "invalid"),
    "deep": ("/api/detect", b"[" * 100_000, JSON, 400, "malformed"),
    "a giant number": ("/api/detect", b'{"text": ' + b"9" * 10_000 + b"}", JSON, 400, "malformed"),
    "a list": ("/api/detect", b'["xyzzymarker"]', JSON, 422, "invalid"),
    "a string": ("/api/detect", b'"xyzzymarker"', JSON, 422, "invalid"),
    "no text": ("/api/detect", b"{}", JSON, 422, "invalid"),
    "a number": ("/api/detect", b'{"text": 3}', JSON, 422, "invalid"),
    "null": ("/api/detect", b'{"text": null}', JSON, 422, "invalid"),
    "another field": ("/api/detect", b'{"text": "a", "xyzzymarker": "xyzzymarker"}', JSON, 422, "invalid"),
    "words of words": ("/api/suggest", b'{"text": "a", "words": ["xyzzymarker"]}', JSON, 422, "invalid"),
    "words before": ("/api/suggest", b'{"text": "a", "words": [-1]}', JSON, 422, "invalid"),
    "too many words": ("/api/suggest", json.dumps({"text": "a", "words": [0] * 65}).encode(), JSON, 422, "invalid"),
    "no count": ("/api/suggest", b'{"text": "a", "words": [0], "count": 0}', JSON, 422, "invalid"),
    "a true count": ("/api/suggest", b'{"text": "a", "words": [0], "count": true}', JSON, 422, "invalid"),
    "no such word": ("/api/suggest", b'{"text": "cat xyzzymarker", "words": [1]}', JSON, 422, "no_such_word"),
    "long text": ("/api/detect", json.dumps({"text": MARKER * 2000}).encode(), JSON, 413, "text_too_long"),
    "large": ("/api/detect", json.dumps({"text": MARKER * 40_000}).encode(), JSON, 413, "body_too_large"),
    "a form": ("/api/detect", b"text=xyzzymarker", {"Content-Type": "text/plain"}, 415, "not_json"),
    "unsaid": ("/api/detect", b'{"text": "xyzzymarker"}', {}, 415, "not_json"),
    "a file's path": ("/page.js", b'{"text": "xyzzymarker"}', JSON, 405, "wrong_method"),
    "no path": ("/api/nothing", b"{}", JSON, 404, "unknown_path"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_json_and_repeat_nothing(client, case):
    path, body, headers, status, code = REFUSED[case]
    answer = client.post(path, content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["error"]["message"].endswith(".")
    assert MARKER not in answer.text
    assert len(ask(client, "/api/detect", text="the cat")["words"]) == 2


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/api/detect", 405), ("DELETE", "/api/model", 405), ("GET", "/none", 404)]
)
def test_paths_and_methods_that_are_not(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"code", "message"}


def test_an_endless_body_is_cut_off(client, address):
    """Chunks without a length: refused when there are too many, not when they end."""
    sent = 0

    def chunks():
        nonlocal sent
        yield b'{"text": "'
        for _ in range(2000):
            sent += 1 << 16
            yield b"a" * (1 << 16)

    with httpx.Client(base_url=address, timeout=30) as other:
        try:
            answer = other.post("/api/detect", content=chunks(), headers=JSON)
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "body_too_large"
        except httpx.WriteError:  # it hung up on us
            assert sent < 2000 << 16
    assert len(ask(client, "/api/detect", text="the cat")["words"]) == 2


def test_a_large_body_is_refused_by_its_header(address):
    """Before any of it was sent."""
    import socket

    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(
            b"POST /api/detect HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 9999999999\r\n\r\n"
        )
        assert b" 413 " in line.recv(4096).splitlines()[0]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8391"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "localhost:8391"}, 200),
        ({"Host": "[::1]:8391"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Host": "localhost:8391", "Origin": "http://localhost:8391"}, 200),
    ],
)
def test_other_hosts_and_other_sites_stay_out(client, headers, status):
    answer = client.post("/api/detect", content=b'{"text": "the cat"}', headers=JSON | headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403


def test_a_token_is_demanded(serve):
    token = "a-token-of-some-length"
    with httpx.Client(base_url=serve(doors=Doors(token, is_public=True))) as client:
        for wrong in (
            {},
            {"Authorization": "Bearer no"},
            {"Authorization": token},
            {"Authorization": f"Basic {token}"},
        ):
            answer = client.get("/api/model", headers=wrong)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert client.post("/api/detect", json={"text": "a"}, headers=wrong).status_code == 401
        known = {"Authorization": f"Bearer {token}", "Host": "anything.example"}
        assert client.get("/api/model", headers=known).status_code == 200
        assert len(client.post("/api/detect", json={"text": "the cat"}, headers=known).json()["words"]) == 2
        assert client.get("/").status_code == client.get("/health").status_code == 200


def test_too_many_requests(serve, wound):
    with httpx.Client(base_url=serve(Limits(rate=2, burst=3))) as client:
        for _ in range(9):
            away = client.post("/api/detect", json={"text": "a"}, headers={"Origin": "http://evil.example"})
            assert away.status_code == 403, "who is not let in takes nothing from who is"
        answers = [client.post("/api/detect", json={"text": "the cat"}) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 3
        refused = answers[-1]
        assert refused.json()["error"]["code"] == "too_many_requests"
        assert int(refused.headers["retry-after"]) == 1
        assert client.get("/").status_code == 200  # the page itself is not counted
        wound.now += 0.5
        assert client.post("/api/detect", json={"text": "the cat"}).status_code == 200


def texts_of(count: int) -> list[str]:
    draw = random.Random(0)
    return [" ".join(sentences(draw.randint(0, 12), seed=n)) + f" cat {n}" for n in range(count)]


def test_many_at_once_get_what_they_would_get_alone(client, address):
    texts = texts_of(50)
    alone = [ask(client, "/api/detect", text=text)["words"] for text in texts]

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=address, timeout=60, limits=httpx.Limits(max_connections=60)) as many:
            return await asyncio.gather(*(many.post("/api/detect", json={"text": text}) for text in texts))

    for words, answer in zip(alone, asyncio.run(together()), strict=True):
        found = answer.json()["words"]
        assert [(w["start"], w["stop"]) for w in found] == [(w["start"], w["stop"]) for w in words]
        assert [w["replaced"] for w in found] == pytest.approx([w["replaced"] for w in words], abs=1e-5)


async def statuses_of(address: str, texts: list[str]) -> list[httpx.Response]:
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        return await asyncio.gather(*(client.post("/api/detect", json={"text": text}) for text in texts))


def test_what_comes_while_the_network_is_busy_is_read_in_one_call(serve, slow):
    say = slow(0.1)
    address = serve(using=say.detector)
    assert {answer.status_code for answer in asyncio.run(statuses_of(address, texts_of(30)))} == {200}
    assert say.calls < 15
    answer = httpx.post(f"{address}/api/suggest", json={"text": "the cat", "words": [4]})  # without a generator
    assert answer.json() == {"words": [{"start": 4, "stop": 7, "suggestions": []}]}


def test_a_queue_that_is_full(serve, slow):
    address = serve(Limits(rate=1e6, burst=1_000_000, waiting=2), using=slow(0.1).detector)
    answers = asyncio.run(statuses_of(address, texts_of(12)))
    assert {answer.status_code for answer in answers} == {200, 503}
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert refused.json()["error"]["code"] == "busy"
    assert refused.headers["retry-after"] == "1"
    assert httpx.post(f"{address}/api/detect", json={"text": "the cat"}).status_code == 200


def test_who_hangs_up_is_not_read_for(serve, slow, monkeypatch):
    """One is read, a second waits and leaves, a third is read."""
    say, desks = slow(0), []
    monkeypatch.setattr("elektron.page.app.Batcher", lambda *given: desks.append(Batcher(*given)) or desks[0])
    address = serve(using=say.detector)
    say.held.clear()

    async def hang_up() -> None:
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            one, other = (partial(client.post, "/api/detect", json={"text": text}) for text in ("the cat", "a dog"))
            first = asyncio.ensure_future(one())
            while not say.calls:
                await asyncio.sleep(0.01)
            second = asyncio.ensure_future(other())
            while not desks[0]._waiting:
                await asyncio.sleep(0.01)
            second.cancel()
            while not desks[0]._waiting[0][1].cancelled():
                await asyncio.sleep(0.01)
            say.held.set()
            assert [(await answer).status_code for answer in (first, one())] == [200, 200]

    asyncio.run(asyncio.wait_for(hang_up(), 60))
    assert say.calls == 2


def test_fifty_clients_for_two_seconds(address):
    texts = texts_of(50)

    async def ask_on(client: httpx.AsyncClient, text: str, until: float) -> list[int]:
        statuses = []
        while time.monotonic() < until:
            statuses.append((await client.post("/api/detect", json={"text": text})).status_code)
        return statuses

    async def load() -> list[list[int]]:
        async with httpx.AsyncClient(base_url=address, timeout=60, limits=httpx.Limits(max_connections=60)) as client:
            return await asyncio.gather(*(ask_on(client, text, time.monotonic() + 2) for text in texts))

    found = asyncio.run(load())
    assert all(statuses for statuses in found)
    assert {status for statuses in found for status in statuses} == {200}
