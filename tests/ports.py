"""Ports that nobody else takes before they are used: below those that the kernel gives out, and for each of pytest's
processes its own."""

import itertools
import os
import socket

_OF_EACH = 500
_FIRST = 20_000 + _OF_EACH * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_ports = itertools.count(_FIRST)


def free_port() -> int:
    for port in _ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("there are always more")
