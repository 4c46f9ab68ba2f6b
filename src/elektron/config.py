"""Configs: frozen dataclasses, written as TOML files and command-line flags, and back.

Generic: it knows dataclasses, not ours. Files come first, flags after, flags win; an unknown key is refused with the
nearest known one. Types that occur: int, float, bool, str, Path, Literal, tuples of these, dataclasses.
"""

import dataclasses
import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tomli_w

T = TypeVar("T")


def split_files(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The TOML files that come before the flags, and the flags."""
    count = next((i for i, a in enumerate(arguments) if a.startswith("-") or not a.endswith(".toml")), len(arguments))
    return [Path(a) for a in arguments[:count]], list(arguments[count:])


def parse(default: T, flags: Sequence[str], prog: str, description: str, first: str = "") -> T:
    """`default` with the flags' values; `first` names the field that a bare first word is for. Prints help and exits on
    --help, exits with 2 on flags it does not know."""
    import tyro

    if first:
        prog = f"{prog} [{first.upper()}]"
        flags = [f"--{first}", *flags] if flags and not flags[0].startswith("-") else flags
    _refuse_repeated(flags, type(default))
    return tyro.cli(type(default), args=list(flags), default=default, prog=prog, description=description)


def glimpse(default: T, files: Sequence[Path], flags: Sequence[str]) -> T:
    """`default` with those values of the files and flags that are its own; the others are somebody else's."""
    import tyro

    names = {field.name for field in dataclasses.fields(default)}  # pyright: ignore[reportArgumentType]
    for file in files:
        default = overlay(default, {n: v for n, v in read_toml(file).items() if n in names}, str(file))
    found, _ = tyro.cli(type(default), args=list(flags), default=default, return_unknown_args=True, add_help=False)
    return found


def _refuse_repeated(flags: Sequence[str], kind: type) -> None:
    """The last of two equal flags wins, which is what nobody wants of a list of names."""
    for name, hint in get_type_hints(kind).items():
        if hint == tuple[str, ...] and list(flags).count(f"--{name}") > 1:
            raise ValueError(f"--{name} is given more than once: list all its values after one")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"no such config file: {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not TOML ({error})") from error


def overlay(config: T, values: dict[str, Any], source: str) -> T:
    """`config` with the values of a nested dict, every one checked; `source` is who gave them, for messages."""
    return _overlay(config, values, source, "")


def _overlay(config: T, values: dict[str, Any], source: str, prefix: str) -> T:
    hints = get_type_hints(type(config))
    changes = {}
    for name, value in values.items():
        if name not in hints:
            raise ValueError(f"{source}: unknown key {prefix + name!r}{_nearest(name, list(hints))}")
        current = getattr(config, name)
        if dataclasses.is_dataclass(current) and isinstance(value, dict):
            changes[name] = _overlay(current, value, source, f"{prefix}{name}.")
        else:
            changes[name] = _converted(value, hints[name], f"{source}: {prefix}{name}")
    return dataclasses.replace(config, **changes)  # pyright: ignore[reportArgumentType, reportReturnType]


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, 1)
    return (f"; did you mean {close[0]!r}?" if close else "") + f" (known: {', '.join(names)})"


def _converted(value: Any, kind: Any, where: str) -> Any:  # noqa: ANN401
    origin = get_origin(kind)
    if origin is Literal:
        if value not in get_args(kind):
            raise ValueError(f"{where} = {value!r} is none of {', '.join(map(repr, get_args(kind)))}")
        return value
    if origin is tuple and isinstance(value, list | tuple):
        kinds = get_args(kind)
        kinds = (kinds[0],) * len(value) if kinds[-1] is Ellipsis else kinds
        if len(kinds) != len(value):
            raise ValueError(f"{where} = {value!r} must have {len(kinds)} entries")
        return tuple(_converted(v, k, where) for v, k in zip(value, kinds, strict=True))
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(kind, type) or not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{where} = {value!r} is not {_in_words(kind)}")
    return value


def _in_words(kind: Any) -> str:  # noqa: ANN401
    if get_origin(kind) is tuple:
        return "a list"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", Path: "a string"}
    return words.get(kind, "a table of settings")


def to_dict(config: object) -> dict[str, Any]:
    """The config as TOML can hold it."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}  # pyright: ignore[reportArgumentType]


def _plain(value: Any) -> Any:  # noqa: ANN401
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def to_toml(config: object) -> str:
    return tomli_w.dumps(to_dict(config))


def differences(old: object, new: object, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """The dotted names at which two configs of one type differ, with both values."""
    found = {}
    for field in dataclasses.fields(old):  # pyright: ignore[reportArgumentType]
        a, b = getattr(old, field.name), getattr(new, field.name)
        if dataclasses.is_dataclass(a):
            found |= differences(a, b, f"{prefix}{field.name}.")
        elif a != b:
            found[prefix + field.name] = (a, b)
    return found
