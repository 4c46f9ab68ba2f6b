"""Buckets of tokens, by a clock that we wind."""

import socket
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elektron.page.limits import BodyLimit, Buckets
from elektron.page.terms import Limits, is_loopback
from page.conftest import served


def test_a_burst_and_then_a_rate():
    now = 0.0
    buckets = Buckets(rate=2, burst=3, clock=lambda: now)
    assert [buckets.wait_seconds("a") for _ in range(3)] == [0, 0, 0]
    assert buckets.wait_seconds("a") == pytest.approx(0.5)
    assert buckets.wait_seconds("b") == 0
    now = 0.5
    assert buckets.wait_seconds("a") == 0
    assert buckets.wait_seconds("a") == pytest.approx(0.5)
    now = 100
    assert [buckets.wait_seconds("a") > 0 for _ in range(4)] == [False, False, False, True]


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from("ab")), max_size=60))
def test_nobody_gets_more_than_his_share(steps):
    now, granted = 0.0, {"a": 0, "b": 0}
    buckets = Buckets(rate=1.5, burst=4, clock=lambda: now)
    for wait, who in steps:
        now += wait
        granted[who] += buckets.wait_seconds(who) == 0
        assert granted[who] <= 4 + 1.5 * now + 1e-6


def test_memory_is_bounded():
    buckets = Buckets(rate=1, burst=1)
    for n in range(10_000):
        buckets.wait_seconds(f"10.0.{n // 256}.{n % 256}")
    assert len(buckets) <= 4096


def test_a_body_that_does_not_arrive_is_not_waited_for():
    """By a client that sends less than it promised, and then nothing."""

    async def app(scope, receive, send):
        raise AssertionError("it was handed on")

    with served(BodyLimit(app, most_bytes=1000, seconds=0.2)) as address:
        place = urlsplit(address)
        with socket.create_connection((place.hostname, place.port), timeout=10) as line:
            line.sendall(b"POST /api/detect HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n{")
            answer = line.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_limits_are_more_than_nothing():
    for name in ("characters", "rate", "burst", "waiting"):
        with pytest.raises(ValueError, match=f"--limits.{name}"):
            Limits(**{name: 0})


def test_loopback():
    assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.0.1", "localhost.evil.example", ""]))
