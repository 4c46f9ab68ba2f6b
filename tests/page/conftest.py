"""Servers to ask, the real one in a thread on a free port; and a browser to ask them with."""

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvicorn

from elektron.model.heads import Discriminator
from elektron.page.app import create_app
from elektron.page.doors import Doors
from elektron.page.facts import facts_of
from elektron.page.limits import Buckets
from elektron.page.terms import Limits
from elektron.score.calibration import Calibration
from elektron.score.detector import Detector
from elektron.score.reader import Reader
from elektron.score.rows import Row, replaced_logits
from elektron.verbs.judges import Judges, Who, open_judges

PLENTY = Limits(characters=20_000, rate=1e6, burst=1_000_000, waiting=256)
THRESHOLD = 0.8
"""At which about half of the words are marked by a model that knows nothing."""
Serve = Callable[..., str]
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="session")
def judges(untaught: Path) -> Judges:
    return open_judges(Who(model=str(untaught)))


@pytest.fixture(scope="session")
def detector(judges: Judges) -> Detector:
    return judges.detector(suggests=True)


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


class Slow:
    """A discriminator that takes its time, and how often it was asked."""

    def __init__(self, judges: Judges, seconds: float) -> None:
        assert isinstance(judges.discriminator, Discriminator)
        self._say = replaced_logits(judges.discriminator, judges.tokenizer.specials)
        self._seconds, self.calls = seconds, 0
        self.held = threading.Event()
        """Cleared, it keeps whoever asks waiting."""
        self.held.set()
        self.detector = Detector(Reader(self._slowly, judges.tokenizer, 32), Calibration(), None)

    def _slowly(self, rows: Sequence[Row]) -> list[np.ndarray]:
        self.calls += 1
        time.sleep(self._seconds)
        self.held.wait(60)
        return self._say(rows)


@pytest.fixture(scope="session")
def slow(judges: Judges) -> Callable[[float], Slow]:
    return lambda seconds: Slow(judges, seconds)


@pytest.fixture(scope="session")
def serve(untaught: Path, judges: Judges, detector: Detector) -> Iterator[Serve]:
    """Start a server with other limits, doors or another detector; its address."""
    with contextlib.ExitStack() as stack:

        def start(limits: Limits = PLENTY, doors: Doors = Doors(), using: Detector = detector) -> str:
            assert judges.discriminator is not None
            facts = facts_of("untaught", untaught, judges.discriminator, using, THRESHOLD, limits.characters)
            return stack.enter_context(served(create_app(using, facts, limits, doors)))

        yield start


class Clock:
    """One that stands still until it is wound on."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wound(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which servers that are started from now on count requests."""
    clock = Clock()
    monkeypatch.setattr("elektron.page.app.Buckets", partial(Buckets, clock=clock))
    return clock


@pytest.fixture(scope="session")
def address(serve: Serve) -> str:
    return serve()


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=30) as found:
        yield found


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium, driven by Playwright."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no tests in a browser: chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api", reason="no tests in a browser: playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, headless=True, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def visit(browser):
    """Open a page; in the end, nothing has gone wrong in it, and its policy has forbidden nothing."""
    contexts, troubles = [], []

    def open_page(address: str, **settings: object):
        context = browser.new_context(**({"viewport": {"width": 1100, "height": 800}} | settings))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda said: troubles.append(said.text) if "Content Security" in said.text else None)
        page.goto(address)
        page.wait_for_selector("#facts div", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []
