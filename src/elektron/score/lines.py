"""Lines of text to be judged, from files or standard input, as they are: no character is changed or lost."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TextIO

_LONGEST = 1 << 24
"""Characters of a line that are read at a time; what is longer becomes several."""
STANDARD_INPUT = "-"
RECORDS = ".jsonl"


class Line(NamedTuple):
    """A line without its end, or the text of a record."""

    text: str
    end: str
    """A newline, or nothing where a file does not end with one."""
    record: dict[str, Any]
    """What else there is in a line of JSON."""


def lines(paths: Sequence[str], field: str = "", advance: Callable[[int], object] = int) -> Iterator[Line]:
    """Of each file in turn. A file named .jsonl has records, with the text in `field`; so has standard input, if there
    is a `field`. `advance` is told how many bytes of files were read."""
    for path in paths or (STANDARD_INPUT,):
        is_standard = path == STANDARD_INPUT
        has_records = bool(field) if is_standard else Path(path).suffix == RECORDS
        with nullcontext(_standard_input()) if is_standard else _opened(path) as file:
            number = read = 0
            tells = not is_standard and file.seekable()  # a pipe with a name does not
            while line := file.readline(_LONGEST):
                text, number = line.removesuffix("\n"), number + 1
                if tells and file.buffer.tell() > read:
                    advance(file.buffer.tell() - read)
                    read = file.buffer.tell()
                if has_records:
                    yield _record(text, field or "text", f"{path}, line {number}")
                else:
                    yield Line(text, line[len(text) :], {})


def _opened(path: str) -> TextIO:
    return open(path, encoding="utf-8", errors="surrogateescape", newline="\n")


def _standard_input() -> TextIO:
    keep_bytes(sys.stdin)
    return sys.stdin


def keep_bytes(stream: TextIO) -> None:
    """Let standard input or output neither change ends of lines nor stumble over bytes that are no characters."""
    stream.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")  # pyright: ignore[reportAttributeAccessIssue]


def _record(line: str, field: str, where: str) -> Line:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON ({error})") from error
    if not isinstance(record, dict) or not isinstance(record.get(field), str):
        known = ", ".join(record) if isinstance(record, dict) else type(record).__name__
        raise ValueError(f"{where}: no text {field!r} (there is: {known}); say which with --field")
    return Line(record[field], "\n", record)
