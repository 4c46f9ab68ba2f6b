"""Folders of whole files, on this machine or behind a URL that fsspec opens (s3://, gs://, hdfs:// and others).

What has a name is whole. On this machine a file is written aside, synced and renamed; an object store shows an object
when all of it has arrived; other file systems behind URLs are written aside and renamed too.
"""

import io
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from elektron.data.files import UNFINISHED_FILE, locked, write_atomically

Place = str | Path
"""A folder: a path, or a URL."""
FILE_URL = "file://"
_AT_ONCE = 1 << 20
"""Bytes to ask a reader of a URL for."""
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci", "memory"}
"""Protocols under which a file appears when it is whole, and not before."""
_PACKAGES = {"s3": "'elektron[s3]'", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
"""What to install for a protocol, where fsspec alone does not do."""


def is_url(place: Place) -> bool:
    """Whether something lies elsewhere: file:// is this machine's."""
    return "://" in str(place) and not str(place).startswith(FILE_URL)


def local_path(place: Place) -> Path:
    assert not is_url(place), place
    return Path(str(place).removeprefix(FILE_URL))


class Storage(ABC):
    """A folder of files, which str() names."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """All of a file; FileNotFoundError if there is none."""

    @abstractmethod
    def write(self, name: str, *chunks: bytes | memoryview) -> None:
        """A file that is there whole or not at all, whoever else writes it at the same time."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """A file, if it is there."""

    @abstractmethod
    def exists(self, name: str) -> bool: ...

    @abstractmethod
    def names(self) -> list[str]:
        """The files that are there."""

    @abstractmethod
    def occupied(self) -> AbstractContextManager[None]:
        """Ready to be written to, without the leavings of a writer that was killed."""


def storage(place: Place, writer: str = "") -> Storage:
    """Where `place` is. Writers that work in one folder at the same time have names; without one, a writer has the
    folder to itself."""
    return Remote(str(place).rstrip("/")) if is_url(place) else Local(local_path(place), writer)


@dataclass(frozen=True)
class Local(Storage):
    """A folder of this machine, or of a file system that several machines have mounted."""

    path: Path
    writer: str = ""
    process: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    """Goes with the writer's name: a scheduler may start the same writer twice."""

    def __str__(self) -> str:
        return str(self.path)

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, *chunks: bytes | memoryview) -> None:
        write_atomically(self.path / name, *chunks, writer=self.writer and f".{self.writer}.{self.process}")

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        return (self.path / name).is_file()

    def names(self) -> list[str]:
        return [entry.name for entry in os.scandir(self.path) if entry.is_file()] if self.path.is_dir() else []

    @contextmanager
    def occupied(self) -> Iterator[None]:
        with locked(self.path, shared=bool(self.writer)):
            whose = f".*.{self.writer}.*" if self.writer else ".*"
            for leaving in self.path.glob(whose + UNFINISHED_FILE):
                leaving.unlink(missing_ok=True)
            yield


@dataclass(frozen=True)
class Remote(Storage):
    """A folder behind a URL."""

    url: str

    def __str__(self) -> str:
        return self.url

    def read(self, name: str) -> bytes:
        files, path = self._at(name)
        with reaching(self.url):
            return files.cat_file(path)

    def write(self, name: str, *chunks: bytes | memoryview) -> None:
        files, path = self._at(name)
        with reaching(self.url):
            if self.url.partition("://")[0] in _OBJECT_STORES:
                files.pipe_file(path, b"".join(chunks))
                return
            folder, _, last = path.rpartition("/")
            aside = f"{folder}/.{last}.{socket.gethostname()}-{os.getpid()}{UNFINISHED_FILE}"
            files.makedirs(folder, exist_ok=True)
            files.pipe_file(aside, b"".join(chunks))
            if files.exists(path):
                files.rm_file(path)  # not every file system renames onto what is there
            files.mv(aside, path)

    def remove(self, name: str) -> None:
        files, path = self._at(name)
        with reaching(self.url):
            if files.exists(path):
                files.rm_file(path)

    def exists(self, name: str) -> bool:
        files, path = self._at(name)
        with reaching(self.url):
            return files.isfile(path)

    def names(self) -> list[str]:
        files, path = self._at("")
        try:
            with reaching(self.url):
                found = files.ls(path.rstrip("/"), detail=True)
        except FileNotFoundError:
            return []
        return [entry["name"].rpartition("/")[2] for entry in found if entry["type"] == "file"]

    def occupied(self) -> AbstractContextManager[None]:
        return nullcontext()

    def download(self, name: str, to: Path) -> None:
        files, path = self._at(name)
        with reaching(f"{self.url}/{name} for {to}"):
            files.get_file(path, str(to))

    def _at(self, name: str) -> tuple[Any, str]:
        """Others write to the folder too: what was listed a while ago says nothing about now."""
        return filesystem(f"{self.url}/{name}", use_listings_cache=False)


def filesystem(url: str, **options: object) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it."""
    import fsspec

    protocol = url.partition("://")[0]
    try:
        return fsspec.url_to_fs(url, **options)
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        hint = f"`pip install {package}`" if package else str(error)
        raise ValueError(f"{url}: {protocol}:// needs another package: {hint}") from error
    except ValueError as error:
        raise ValueError(f"{url}: {error}") from error


class UnreachableError(OSError):
    """A URL that cannot be read or written now."""


@contextmanager
def reaching(what: str) -> Iterator[None]:
    """What goes wrong on the way to a URL, in words: the libraries behind fsspec raise what they like."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise UnreachableError(f"cannot reach {what}: {str(error) or type(error).__name__}") from error


def open_url(url: str) -> IO[bytes]:
    """A file behind a URL, to read."""
    files, path = filesystem(url)
    try:
        with reaching(url):
            return io.BufferedReader(_Reached(files.open(path, "rb"), url), _AT_ONCE)
    except FileNotFoundError:
        raise ValueError(f"{url} is not there any more") from None


class _Reached(io.RawIOBase):
    """A file of fsspec's, whose errors are ours."""

    def __init__(self, file: Any, url: str) -> None:  # noqa: ANN401
        self._file, self._url = file, url

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        with reaching(self._url):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
