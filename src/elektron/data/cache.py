"""This machine's copies of files that lie elsewhere, named by their sha256: what has a name is whole and right."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from elektron.data.files import UNFINISHED_FILE, sha256

VARIABLE = "ELEKTRON_CACHE"


def cache_folder() -> Path:
    """$ELEKTRON_CACHE, or a folder in the user's cache."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elektron"


def copied(path: Path, digest: str, source: str, download: Callable[[Path], None], verify: bool) -> None:
    """See that a file with this sha256 is at `path`. Of several processes that want it one downloads, and the others
    wait for it. A copy that was damaged since is replaced, where it is looked at."""
    if path.exists() and (not verify or sha256(path) == digest):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}{UNFINISHED_FILE}")
    with open(unfinished, "ab") as file:  # the lock; whoever is killed holding it leaves it to the next
        fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists() and sha256(path) == digest:
            unfinished.unlink(missing_ok=True)
            return
        try:
            download(unfinished)
        except FileNotFoundError:
            raise ValueError(f"{source} is missing; run `elektron prepare` again") from None
        if (found := sha256(unfinished)) != digest:
            raise ValueError(
                f"{source}: damaged (its sha256 is {found[:12]}..., expected was {digest[:12]}...); "
                "run `elektron prepare` again"
            )
        os.fsync(file.fileno())
        os.replace(unfinished, path)
