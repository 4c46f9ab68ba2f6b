"""A server to look at or to load, as `elektron page` starts it, on a free port of this machine."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_FLAGS = ("--port", "0", "--limits.rate", "1e6", "--limits.burst", "1000000")


@contextmanager
def server(model: str) -> Iterator[str]:
    """Its address; with no model, the one that comes with Elektron. It ends with the block."""
    command = [sys.executable, "-m", "elektron", "page", *_FLAGS, *(("--model", model) if model else ())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"http://\S+", said)
        if not found:
            sys.exit(f"the server did not start: {said}")
        yield found[0]
    finally:
        process.terminate()
        process.wait()
