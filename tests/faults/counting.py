"""How many faults are made to happen, and what came of them: a count that pytest prints at its end.

`--faults short` is what `make test` runs, `--faults full` what `make test-faults` does. A test says what it does to a
command with `faults.inject(...)`; the fault is survived if the block under it ends well. What a test counts travels in
its report, so workers of pytest-xdist add up too.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

_INJECTED, _SURVIVED, _LOST = "injected", "survived", "bytes lost"
_PROPERTY = "faults"


class Faults:
    """Those of one test."""

    def __init__(self, is_full: bool, seed: str) -> None:
        self.is_full = is_full
        self.random = random.Random(seed)
        """Other draws for each test, the same each time it runs."""
        self.kinds: dict[str, dict[str, int]] = {}
        self._newest: dict[str, int] = {}

    def times(self, short: int, full: int) -> int:
        return full if self.is_full else short

    @contextmanager
    def inject(self, kind: str, count: int = 1) -> Iterator[None]:
        self._newest = counts = self.kinds.setdefault(kind, {_INJECTED: 0, _SURVIVED: 0, _LOST: 0})
        counts[_INJECTED] += count
        yield
        counts[_SURVIVED] += count

    def same(self, expected: Mapping[str, bytes], found: Mapping[str, bytes]) -> None:
        """Files, as they are without a fault and as they are here; all that differs of them is lost."""
        lost = {name: content for name, content in expected.items() if found.get(name) != content}
        self._newest[_LOST] += sum(map(len, lost.values()))
        assert not lost, f"differ: {', '.join(sorted(lost))}"
        assert set(found) == set(expected), f"left behind: {', '.join(sorted(set(found) - set(expected)))}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", choices=("short", "full"), default="short", help="how many faults to inject")


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> Iterator[Faults]:
    found = Faults(request.config.getoption("--faults") == "full", request.node.nodeid)
    yield found
    request.node.user_properties.append((_PROPERTY, found.kinds))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    totals: dict[str, dict[str, int]] = {}
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if getattr(report, "when", "") == "teardown":
            _add(totals, dict(getattr(report, "user_properties", ())).get(_PROPERTY, {}))
    if not totals:
        return
    terminalreporter.section("faults")
    width = max(map(len, totals))
    for kind in sorted(totals):
        terminalreporter.line(f"{kind:<{width}}  {_in_words(totals[kind])}")
    whole: dict[str, int] = {}
    for counts in totals.values():
        whole = {name: whole.get(name, 0) + count for name, count in counts.items()}
    terminalreporter.line(f"{'all faults':<{width}}  {_in_words(whole)}")


def _add(totals: dict[str, dict[str, int]], found: dict[str, dict[str, int]]) -> None:
    for kind, counts in found.items():
        before = totals.get(kind, {})
        totals[kind] = {name: before.get(name, 0) + count for name, count in counts.items()}


def _in_words(counts: dict[str, int]) -> str:
    return f"{counts[_INJECTED]:>5,} injected, {counts[_SURVIVED]:>5,} survived, bytes lost = {counts[_LOST]:,}"
