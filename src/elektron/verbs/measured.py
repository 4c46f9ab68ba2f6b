"""What `elektron bench` measured, kept in the user's cache for `elektron plan`.

    ~/.cache/elektron/bench.json   {"DEVICE: DIGEST": {...}, ...}

The digest is of all that decides the speed beside the device, so that another model, batch or torch is another entry.
"""

import hashlib
import json
import math
import platform
import statistics
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

import elektron
from elektron.config import to_dict
from elektron.data.cache import cache_folder
from elektron.data.files import fields_of, read_json, write_json
from elektron.train.device import describe
from elektron.train.schedule import Phase
from elektron.verbs.runs import RunConfig


@dataclass(frozen=True)
class Measured:
    """One phase on one device."""

    device: str
    date: str
    settings: dict[str, Any]
    """What the speed depends on."""
    flops_per_token: float
    matrix_peak: float
    """FLOP/s of a large matrix product."""
    copy_peak: float
    """Bytes a second, read and written, of a large copy."""
    step_seconds: tuple[float, ...]
    """Seconds a step, of each time it was timed."""
    tokens_per_second: float
    mfu: float
    """Share of the matrix peak."""
    memory_bytes: int
    """Of the GPU, at the most; 0 on a CPU."""
    first_step_seconds: float
    """From nothing to the end of the first step."""
    loader_stall: float
    """Share of the time in which the device waits for a batch."""

    @property
    def seconds(self) -> float:
        """Of a step, in the median."""
        return statistics.median(self.step_seconds)


def where(device: torch.device) -> str:
    """A device's name. CPUs of one description are many: the machine's own name tells them apart."""
    return describe(device) if device.type == "cuda" else f"{describe(device)} of {platform.node()}"


def settings_of(config: RunConfig, phase: Phase, vocab_size: int) -> dict[str, Any]:
    """What the speed of a phase depends on, beside the device."""
    return {
        "length": phase.length,
        "rows": phase.rows,
        "accumulate": config.train.accumulate,
        "recompute": config.train.recompute,
        "kernels": config.train.kernels,
        "optimizer": config.optimizer.kind,
        "vocab_size": vocab_size,
        "model": to_dict(config.model),
        "objective": to_dict(config.objective),
        "torch": torch.__version__,
        "elektron": elektron.__version__,
    }


def cache_file() -> Path:
    return cache_folder() / "bench.json"


def kept() -> dict[str, Measured]:
    """All that was ever measured for this user."""
    path, names = cache_file(), [field.name for field in fields(Measured)]
    if not path.exists():
        return {}
    try:
        records = read_json(path)
        if not isinstance(records, dict):
            raise ValueError(f"{path}: damaged")
        return {key: Measured(**fields_of(record, names, path)) for key, record in records.items()}
    except ValueError as error:
        raise ValueError(f"{error}; remove it, and measure again with `elektron bench`") from error


def keep(found: list[Measured]) -> None:
    everything = kept() | {_key(measured.device, measured.settings): measured for measured in found}
    cache_file().parent.mkdir(parents=True, exist_ok=True)
    write_json(cache_file(), {key: asdict(measured) for key, measured in everything.items()})


def _key(device: str, settings: dict[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True)
    return f"{device}: {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def exactly(device: str, settings: dict[str, Any]) -> Measured | None:
    """What was measured of this very phase on this device."""
    return kept().get(_key(device, settings))


def nearest(device: str, flops_per_token: float, tokens: float) -> Measured | None:
    """What was measured on this device of the model and the batch that are nearest in size; `tokens` are those of one
    part of a batch."""

    def distance(measured: Measured) -> float:
        ratios = measured.flops_per_token / flops_per_token, _part_tokens(measured.settings) / tokens
        return sum(abs(math.log(ratio)) for ratio in ratios)

    here = [measured for measured in kept().values() if measured.device == device]
    return min(here, key=distance, default=None)


def with_other_rows(device: str, settings: dict[str, Any]) -> list[Measured]:
    """What was measured on this device of the same in batches of other sizes."""

    def rest(of: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in of.items() if name != "rows"}

    here = [measured for measured in kept().values() if measured.device == device]
    return [m for m in here if rest(m.settings) == rest(settings) and m.settings["rows"] != settings["rows"]]


def _part_tokens(settings: dict[str, Any]) -> float:
    """Tokens that go through the networks at a time."""
    return settings["rows"] * settings["length"] / settings["accumulate"]


def rate(tokens_per_second: float) -> str:
    return f"{tokens_per_second / 1e6:,.2f} Mtok/s" if tokens_per_second >= 1e5 else f"{tokens_per_second:,.0f} tok/s"
