"""elektron bench [FILE.toml ...]: how fast this machine trains. Takes the files and flags of `pretrain`, makes the same
updates on made-up text, and keeps what it measures for `elektron plan`."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from elektron.data.tokenizer import Specials
from elektron.kernels.gpu import use_kernels
from elektron.model.initial import initialise
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Objective
from elektron.objectives.table import build
from elektron.train.device import choose_device, copy_peak, describe, keep_freed_memory, matrix_peak
from elektron.train.schedule import Phase
from elektron.train.speed import Speed, made_up_rows, measure, updates
from elektron.train.step import Updates
from elektron.verbs.measured import Measured, cache_file, keep, kept, rate, settings_of, where
from elektron.verbs.pretrain import configure
from elektron.verbs.runs import RunConfig, glance_at_data


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """elektron bench"""

    repeats: int = 5
    """Times that the steps of a phase are timed: the median counts, the spread is told."""
    seconds: float = 1.0
    """How long each time, and no less than one step."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        if self.repeats < 1 or self.seconds < 0:
            raise ValueError(f"--repeats must be at least 1, --seconds not negative: {self.repeats}, {self.seconds}")


class Peaks(NamedTuple):
    """The best that a device can do."""

    matrix: float
    copy: float


def main(arguments: Sequence[str]) -> None:
    config = configure(arguments, "elektron bench", __doc__ or "", Config)
    device = choose_device(config.device)
    data = glance_at_data(config)
    vocab_size = data.index.vocab_size if data else config.prepare.vocab_size
    kept()  # a file that nothing can be added to had better be told of now
    if device.type == "cpu":
        keep_freed_memory()
    found = []
    with Console(stderr=True).status("measuring the best that the device can do") as status:
        peaks = Peaks(matrix_peak(device), copy_peak(device))
        for number, phase in enumerate(config.train.phases, 1):
            status.update(f"measuring phase {number} of {len(config.train.phases)}")
            found.append(_measured(config, Phase(*phase), vocab_size, device, peaks))
    if config.json:
        print(json.dumps({"phases": [asdict(measured) for measured in found]}))
    else:
        Console(highlight=False, soft_wrap=True).print(_table(found))
    keep(found)  # last: what was measured is told even where it cannot be kept
    if not config.json:
        print(f"kept for elektron plan in {cache_file()}")


def _measured(config: Config, phase: Phase, vocab_size: int, device: torch.device, peaks: Peaks) -> Measured:
    with torch.device("meta"):
        flops_per_token = _model(config, vocab_size).flops_per_token(phase.length)
    speed = speed_of(config, phase, vocab_size, device, config.repeats, config.seconds)
    tokens_per_second = phase.rows * phase.length / speed.seconds
    return Measured(
        device=where(device),
        date=date.today().isoformat(),
        settings=settings_of(config, phase, vocab_size),
        flops_per_token=flops_per_token,
        matrix_peak=peaks.matrix,
        copy_peak=peaks.copy,
        step_seconds=speed.runs,
        tokens_per_second=tokens_per_second,
        mfu=flops_per_token * tokens_per_second / peaks.matrix,
        memory_bytes=speed.memory,
        first_step_seconds=speed.first,
        loader_stall=speed.stall,
    )


def speed_of(
    config: RunConfig, phase: Phase, vocab_size: int, device: torch.device, repeats: int, seconds: float
) -> Speed:
    """Of a phase, timed `repeats` times for so many seconds."""

    def begin() -> Updates:
        model = _model(config, vocab_size)
        initialise(model, config.seed, config.start)
        train = config.train
        use_kernels(train.kernels)
        return updates(model, config.optimizer, config.seed, train.accumulate, train.recompute, device)

    with tempfile.TemporaryDirectory() as folder:
        rows = made_up_rows(Path(folder), vocab_size, phase.length, phase.rows)
        try:
            return measure(begin, rows, phase.rows, device, repeats, seconds)
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"{phase.rows} rows of {phase.length} in {config.train.accumulate} part(s) do not fit the memory of "
                f"{describe(device)}: cut them into more with --train.accumulate, or try --train.recompute"
            ) from error


def _model(config: RunConfig, vocab_size: int) -> Objective:
    return build(config.model, config.objective, Lexicon(Specials(0, 1, 2, 3, 4), vocab_size))


def _table(found: list[Measured]) -> Table:
    """A line for each thing measured, a column for each phase."""
    table = Table(show_header=False, box=None, pad_edge=False)
    first = found[0]
    table.add_row("device", first.device)
    table.add_row("torch", torch.__version__)
    table.add_row("matrix product", f"{first.matrix_peak / 1e12:,.3g} TFLOP/s")
    table.add_row("copy", f"{first.copy_peak / 1e9:,.0f} GB/s, read and written")
    table.add_row("batch", *(f"{m.settings['rows']:,} rows of {m.settings['length']:,}" for m in found))
    table.add_row("step", *map(_step, found))
    table.add_row("speed", *(rate(m.tokens_per_second) for m in found))
    table.add_row("MFU", *(f"{m.mfu:.1%} at {m.flops_per_token / 1e6:,.1f} MFLOP a token" for m in found))
    if first.memory_bytes:
        table.add_row("memory", *(f"{m.memory_bytes / 2**30:,.2f} GiB at the most" for m in found))
    table.add_row("first step", *(f"done after {m.first_step_seconds:,.1f} s" for m in found))
    table.add_row("waits for rows", *(f"{m.loader_stall:.2%} of the time" for m in found))
    return table


def _step(measured: Measured) -> str:
    median, least, most = measured.seconds, min(measured.step_seconds), max(measured.step_seconds)
    return f"{median * 1e3:,.2f} ms ({least * 1e3:,.2f} to {most * 1e3:,.2f})"
