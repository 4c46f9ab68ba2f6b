"""Files that are whole or not there: written under another name, synced, renamed."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

UNFINISHED, DISCARDED = ".unfinished-", ".discarded-"
MANIFEST = "manifest.json"
_SEAL = "sha256"
UNFINISHED_FILE = ".unfinished"


def write_atomically(path: Path, *chunks: bytes | memoryview, writer: str = "") -> None:
    """Write a file so that after a crash, a kill or a full disk the old content or the new one stands there, whole.
    Whoever writes it while others may needs a name of its own."""
    write_parts(path, chunks, writer)


def write_parts(path: Path, parts: Iterable[bytes | memoryview], writer: str = "") -> None:
    """`write_atomically`, of parts that are made one after the other."""
    unfinished = path.with_name(f".{path.name}{writer}{UNFINISHED_FILE}")
    try:
        unfinished.unlink(missing_ok=True)
        with open(unfinished, "xb") as file:  # never through a link that somebody has left under this name
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        if error.filename not in (None, str(unfinished), str(path)):
            raise  # of a file that parts are made from
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to write into, which takes the place of `folder` when all is well and vanishes when it is not.
    The folder around `folder` is made if need be, but none around that: a run that was moved away is not begun anew."""
    unfinished, discarded = (folder.with_name(f"{mark}{folder.name}") for mark in (UNFINISHED, DISCARDED))
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(exist_ok=True)
    unfinished.mkdir()
    try:
        yield unfinished
        sync_folder(unfinished)
        if folder.exists():
            shutil.rmtree(discarded, ignore_errors=True)
            os.replace(folder, discarded)
        os.replace(unfinished, folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(discarded, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Rename first: a folder that is half removed must not look like a whole one."""
    discarded = folder.with_name(DISCARDED + folder.name)
    shutil.rmtree(discarded, ignore_errors=True)
    os.replace(folder, discarded)
    shutil.rmtree(discarded)


@contextmanager
def locked(folder: Path, shared: bool = False) -> Iterator[None]:
    """Have a folder, made if it is not there, to oneself, or share it with others who do; one that is still empty in
    the end is removed again."""
    if folder.is_file():
        raise ValueError(f"{folder} is a file, and a folder is needed")
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ValueError(f"{folder} is in use by another process: wait for it, or choose another folder") from None
    try:
        yield
    finally:
        os.close(descriptor)
        with suppress(OSError):
            folder.rmdir()


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, content: object) -> None:
    write_atomically(path, as_json(content))


def as_json(content: object) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def read_json(path: Path) -> Any:  # noqa: ANN401
    try:
        return parsed_json(path.read_bytes(), path)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None


def parsed_json(content: bytes, path: Path | str) -> Any:  # noqa: ANN401
    """What stands in a file of JSON, read from `path`."""
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged ({error})") from error


def fields_of(record: Any, names: Iterable[str], path: Path | str) -> dict[str, Any]:  # noqa: ANN401
    """The named fields of a JSON object read from `path`, all of them and no others."""
    names = set(names)
    if not isinstance(record, dict) or set(record) != names:
        found = set(record) if isinstance(record, dict) else set()
        raise ValueError(f"{path}: damaged or of another version (differs in {', '.join(sorted(found ^ names))})")
    return record


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """A record with a checksum of itself, so that no digit of it changes unnoticed."""
    return record | {_SEAL: _digest(record)}


def unsealed(record: Any, path: Path | str) -> dict[str, Any]:  # noqa: ANN401
    """A record that was sealed, read from `path`."""
    inside = {name: value for name, value in record.items() if name != _SEAL} if isinstance(record, dict) else {}
    if not isinstance(record, dict) or record.get(_SEAL) != _digest(inside):
        raise ValueError(f"{path}: damaged, or changed by hand (its {_SEAL} is not that of the rest)")
    return inside


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def write_manifest(folder: Path, but: str = "") -> None:
    """The checksums of all files in a folder, but of one that people write in."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (MANIFEST, but))
    write_json(folder / MANIFEST, {str(path.relative_to(folder)): sha256(path) for path in paths})


def genuine(path: Path) -> Path:
    """The path itself, if its file is what the manifest beside it says; what has no manifest is not checked."""
    manifest = path.with_name(MANIFEST)
    if manifest.exists() and path.exists():
        sums = read_json(manifest)
        if not isinstance(sums, dict) or sums.get(path.name) != sha256(path):
            raise ValueError(
                f"{path}: damaged, or changed since it was written (its checksum is not that in {manifest}): "
                "write it again, or remove the manifest if the change is yours"
            )
    return path
