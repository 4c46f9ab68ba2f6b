"""Tables of text, line by line: .tsv as GLUE has it (nothing is quoted, so a quotation mark is a character like any
other), .csv as spreadsheets write it, and .jsonl with an object a line. Wrong lines are named."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SUFFIXES = (".tsv", ".csv", ".jsonl")
_LONGEST_FIELD = 1 << 30


class Line(NamedTuple):
    """A line of a table."""

    where: str
    """The file and the line's number, for messages."""
    fields: dict[str, Any]
    """By the names of the columns: strings, and whatever JSON has in .jsonl."""


def read_table(path: Path, header: Sequence[str] = (), skipped: list[str] | None = None) -> Iterator[Line]:
    """The lines after the header, or all of them if the `header` is given. A line with another number of columns
    raises, or is left out and told to `skipped`."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: not a table that can be read; known are {', '.join(SUFFIXES)}")
    return objects(path) if path.suffix == ".jsonl" else _rows(path, list(header), skipped)


def field(line: Line, name: str) -> str:
    """A column of the line, as text."""
    if name not in line.fields:
        raise ValueError(f"{line.where}: no column {name!r}; there are {', '.join(map(str, line.fields))}")
    value = line.fields[name]
    if not isinstance(value, str | int | float):
        raise ValueError(f"{line.where}: {name!r} is neither text nor a number: {value!r}")
    return whole(str(value), f"{line.where}: {name!r}")


def whole(text: str, where: str) -> str:
    """The text itself. Half of a surrogate pair, which JSON can spell, is no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} has half a character (a surrogate) at {error.start}; mend the file") from error
    return text


def _rows(path: Path, header: list[str], skipped: list[str] | None) -> Iterator[Line]:
    lines = _quoted(path) if path.suffix == ".csv" else _unquoted(path)
    for number, columns in lines:
        where = f"{path}, line {number}"
        if not header:
            header = columns
            if len(set(header)) < len(header):
                raise ValueError(f"{where}: two columns have one name: {', '.join(header)}")
        elif len(columns) == len(header):
            yield Line(where, dict(zip(header, columns, strict=True)))
        elif skipped is None:
            raise ValueError(f"{where}: {len(columns)} columns, where the others have {len(header)}")
        else:
            skipped.append(where)


def _unquoted(path: Path) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in lines(path) if line)


def _quoted(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_LONGEST_FIELD)
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            for columns in reader:
                if columns:
                    yield reader.line_num, columns
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}, after line {reader.line_num}: not CSV in UTF-8 ({error})") from error


def objects(path: Path) -> Iterator[Line]:
    """The JSON objects of a file with one a line."""
    for number, line in lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where}: not JSON ({error}); every line must be one object") from error
        if not isinstance(fields, dict):
            raise ValueError(f"{where}: {type(fields).__name__}, not an object; every line must be one")
        yield Line(where, fields)


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text, plain or compressed (.gz), with their numbers from 1. Only a line feed ends a line: U+0085
    and U+2028 stand in texts."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                text = line.decode().removesuffix("\n").removesuffix("\r")
                yield number, text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line {number}: not UTF-8 ({error}); convert the file") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: damaged or not what its name says ({error}); replace the file") from error
