"""The command line in processes of their own that can be killed, limited and watched.

They are forked from one server that has imported everything, as importing takes longer than what is done to them; the
server itself computes nothing, so there is nothing of it that a child could see.
"""

import itertools
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple

from elektron.cli import main
from elektron.data import prepare

_IMPORTED = [
    "__main__",
    "faults.commands",
    *(f"elektron.verbs.{v}" for v in "prepare pretrain finetune export".split()),
]
_PATIENCE_SECONDS = 120
"""What takes longer hangs."""
_PAUSE_SECONDS = 1.0
_BLOCK_BYTES = 20_000
"""Of text in a shard: a little text makes several."""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    """Its exit code; minus the signal that ended it."""
    said: str
    seconds: float


class Moment(NamedTuple):
    """The n-th sync or rename of a file or folder whose path has these words in it, and what happens then."""

    number: int
    words: tuple[str, ...]
    act: Literal["die", "wait", "vanish", "freeze"] = "die"
    """To `folder`: its name is taken away, or it can be written no more."""
    folder: Path = Path()


class Fate(NamedTuple):
    """What a command has to bear."""

    file_bytes: int = 0
    """The longest file that it may write; any if 0."""
    moment: Moment | None = None
    clock_jumps: bool = False


@dataclass
class Command:
    """A command that runs."""

    process: BaseProcess
    words: Any
    """What it says: the end of a pipe."""
    begun: float

    def kill(self) -> None:
        """kill -9 of the command and all it has started."""
        assert self.process.pid is not None
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended, or has no group of its own yet
            self.process.kill()

    def end(self) -> Ended:
        self.process.join(_PATIENCE_SECONDS)
        if self.process.exitcode is None:
            self.kill()
            raise AssertionError(f"it hangs; it said: {self._said()}")
        code, seconds = self.process.exitcode, time.monotonic() - self.begun
        self.process.close()
        return Ended(code, self._said(), seconds)

    def _said(self) -> str:
        with open(self.words.fileno(), errors="replace", closefd=False) as file:
            return file.read()


class Commands:
    """Starts commands."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_IMPORTED)

    def start(self, *words: object, fate: Fate = Fate()) -> Command:
        reader, writer = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_run, args=([str(word) for word in words], writer, fate))
        begun = time.monotonic()
        process.start()
        writer.close()
        return Command(process, reader, begun)

    def run(self, *words: object, fate: Fate = Fate()) -> Ended:
        return self.start(*words, fate=fate).end()

    def done(self, *words: object) -> Ended:
        """Of a command that must end well."""
        ended = self.run(*words)
        assert ended.code == 0, ended.said
        return ended

    def killed(self, *words: object, after: float) -> Ended:
        """Of a command that is killed after so many seconds, if it lives that long."""
        command = self.start(*words)
        command.process.join(after)
        command.kill()
        return command.end()


def _run(words: Sequence[str], out: Any, fate: Fate) -> None:
    os.setsid()
    os.dup2(out.fileno(), 1)
    os.dup2(out.fileno(), 2)
    out.close()
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    if fate.file_bytes:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fate.file_bytes, fate.file_bytes))
    if fate.moment:
        os.fsync, os.replace = _waiting_for(fate.moment)
    if fate.clock_jumps:
        time.time, time.perf_counter = _jumping(time.time), _jumping(time.perf_counter)
    prepare.BLOCK_BYTES = _BLOCK_BYTES
    sys.argv = ["elektron", *words]
    main()


def _waiting_for(moment: Moment) -> Iterator[Callable[..., None]]:
    """os.fsync and os.replace, at one call of which it happens."""
    calls = itertools.count(1)

    def of(real: Callable[..., None]) -> Callable[..., None]:
        def call(what: int | str | Path, *rest: object) -> None:
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)
            if all(word in path for word in moment.words) and next(calls) == moment.number:
                _happen(moment)
            real(what, *rest)

        return call

    return map(of, (os.fsync, os.replace))


def _happen(moment: Moment) -> None:
    match moment.act:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "wait":
            time.sleep(_PAUSE_SECONDS)
        case "vanish":
            moment.folder.rename(moment.folder.with_name("away"))
        case "freeze":
            subprocess.run(["chattr", "+i", moment.folder], check=True)


def _jumping(real: Callable[[], float]) -> Callable[[], float]:
    """A clock that is years off, another way each time."""
    draw = random.Random(0)
    return lambda: real() + draw.uniform(-1e9, 1e9)
