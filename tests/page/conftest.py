"""Servers to ask: the real one on a free port of this machine, in a thread."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from elektron.page.app import create_app
from elektron.page.doors import Doors
from elektron.page.facts import facts_of
from elektron.page.terms import Limits
from elektron.score.detector import Detector
from elektron.verbs.detect import detector_of
from elektron.verbs.judges import Judges, Who, open_judges

PLENTY = Limits(characters=20_000, rate=1e6, burst=1_000_000, waiting=256)
THRESHOLD = 0.8
"""At which about half of the words are marked by a model that knows nothing."""
Serve = Callable[..., str]


@pytest.fixture(scope="session")
def judges(untaught: Path) -> Judges:
    return open_judges(Who(model=str(untaught)))


@pytest.fixture(scope="session")
def detector(judges: Judges) -> Detector:
    return detector_of(judges, 0, calibrated=True, suggests=True)


@contextlib.contextmanager
def served(app: object) -> Iterator[str]:
    door = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none"))  # pyright: ignore[reportArgumentType]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{door.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    door.close()


@pytest.fixture(scope="session")
def serve(untaught: Path, judges: Judges, detector: Detector) -> Iterator[Serve]:
    """Start a server with other limits, doors or another detector; its address."""
    with contextlib.ExitStack() as stack:

        def start(limits: Limits = PLENTY, doors: Doors = Doors(), using: Detector = detector) -> str:
            assert judges.discriminator is not None
            facts = facts_of("untaught", untaught, judges.discriminator, using, THRESHOLD, limits.characters)
            return stack.enter_context(served(create_app(using, facts, limits, doors)))

        yield start


@pytest.fixture(scope="session")
def address(serve: Serve) -> str:
    return serve()


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=30) as found:
        yield found
