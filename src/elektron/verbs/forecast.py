"""A run on many GPUs, as `elektron plan --gpus 1 8 64` tells it: two tables, one with the run's own batch cut among the
GPUs, one with a batch for each."""

import math
from dataclasses import replace

import torch

from elektron.objectives.objective import Objective
from elektron.train.device import copy_peak, matrix_peak
from elektron.train.scaling import (
    ClusterConfig,
    Forecast,
    MeasuredStep,
    PhaseOf,
    checkpoint_interval,
    checkpoint_seconds,
    failure_seconds,
    forecast,
    layer_seconds,
    least_rows,
    lost_share,
)
from elektron.train.schedule import Phase
from elektron.verbs.measured import exactly, nearest, rate, settings_of, where, with_other_rows
from elektron.verbs.runs import RunConfig

UTILISATION = 0.3
"""Share of a device's matrix peak that the estimates of time suppose."""
TRILLION = 1e12
"""Tokens that a second time and cost are told for."""


def duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} seconds" if seconds >= 1 else "under a second"


def step_of(model: Objective, seconds: float, rows: int, parts: int, memory_bandwidth: float) -> MeasuredStep:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    layers = [layer for encoder in model.encoders() for layer in encoder.layers]
    matrices = sum(p.numel() for layer in layers for p in layer.parameters() if p.requires_grad and p.ndim > 1)
    return MeasuredStep(
        seconds=seconds,
        rows=rows,
        parts=parts,
        layers=len(layers),
        parameters=sum(parameter.numel() for parameter in trained),
        matrices=matrices,
        memory_bandwidth=memory_bandwidth,
    )


def measured_phases(
    config: RunConfig, model: Objective, vocab_size: int, device: torch.device
) -> tuple[list[PhaseOf], str]:
    """The phases' steps on this device, and where they are known from: what bench has measured of them, or of what is
    nearest, or a guess."""
    found, sources = [], []
    for phase in (Phase(*phase) for phase in config.train.phases):
        seconds, memory, source = _seconds(config, model, phase, vocab_size, device)
        measured = step_of(model, seconds, phase.rows, config.train.accumulate, memory)
        found.append(PhaseOf(phase.steps, phase.length, measured))
        sources.append(source)
    return found, "; ".join(dict.fromkeys(sources))


def _seconds(
    config: RunConfig, model: Objective, phase: Phase, vocab_size: int, device: torch.device
) -> tuple[float, float, str]:
    """Of a step; bytes a second of the memory; where that is from."""
    flops_per_token = model.flops_per_token(phase.length)
    flops = phase.rows * phase.length * flops_per_token
    known = exactly(where(device), settings_of(config, phase, vocab_size))
    if known:
        return known.seconds, known.copy_peak, f"a step measured by elektron bench on {known.date}"
    like = nearest(where(device), flops_per_token, phase.rows * phase.length / config.train.accumulate)
    if like:
        source = f"the nearest to it that elektron bench measured on {like.date}"
        return flops / (like.matrix_peak * like.mfu), like.copy_peak, source
    guess = f"a guess of {UTILISATION:.0%} of a matrix product here, since elektron bench has measured nothing"
    return flops / (matrix_peak(device) * UTILISATION), copy_peak(device), guess


def with_measured_layers(
    config: RunConfig, cluster: ClusterConfig, phases: list[PhaseOf], vocab_size: int, device: torch.device
) -> ClusterConfig:
    """The cluster with the time of a layer without rows, where bench knows a phase in two uncut batches."""
    if config.train.accumulate > 1:
        return cluster
    for phase, told in zip(phases, config.train.phases, strict=True):
        settings = settings_of(config, Phase(*told), vocab_size)
        others = with_other_rows(where(device), settings) if exactly(where(device), settings) else []
        if others:
            far = max(others, key=lambda other: abs(math.log(other.settings["rows"] / told[2])))
            other = replace(phase.measured, seconds=far.seconds, rows=far.settings["rows"])
            return replace(cluster, layer_seconds=layer_seconds(phase.measured, other))
    return cluster


HEADER = ("GPUs", "rows a GPU", "step", "all-reduce", "not hidden", "efficiency", "speed")
RUN, MORE = ("this run", "GPU hours"), ("10^12 tokens", "GPU hours")


def header(price: float) -> list[str]:
    cost = ("cost",) if price else ()
    return [*HEADER, *RUN, *cost, *MORE, *cost]


def table(
    phases: list[PhaseOf], gpus: tuple[int, ...], grows: bool, cluster: ClusterConfig, price: float
) -> list[list[str]]:
    """A line for each number of GPUs, as cells."""
    rows, width = least_rows(phases), len(header(price))
    lines = []
    for count in gpus:
        if count > rows and not grows:
            lines.append([f"{count:,}", f"{rows / count:.2g}", *["-"] * (width - 2)])
        else:
            lines.append(_cells(forecast(phases, count, grows, cluster), price))
    return lines


def _cells(found: Forecast, price: float) -> list[str]:
    return [
        f"{found.gpus:,}",
        f"{found.step.rows:,}",
        *(_short(part) for part in (found.step.seconds, found.step.communication, found.step.exposed)),
        f"{found.efficiency:.0%}",
        rate(found.tokens_per_second),
        *_spent(found.seconds, found.gpus, price),
        *_spent(found.seconds_for(TRILLION), found.gpus, price),
    ]


def saving(phases: list[PhaseOf], gpus: int, cluster: ClusterConfig) -> str:
    """How often a run on so many GPUs had better be saved, and what it loses then."""
    cost, failing = checkpoint_seconds(phases[0].measured.parameters, cluster), failure_seconds(gpus, cluster)
    interval = checkpoint_interval(cost, failing)
    lost = lost_share(interval, cost, failing, cluster.restart_seconds)
    steps = interval / forecast(phases, gpus, gpus > least_rows(phases), cluster).step.seconds
    every = f"every {duration(interval)} (--watch.checkpoint-every {max(1, round(steps))})"
    return f"{every}: {lost:.2%}, if one of {gpus:,} GPUs fails every {duration(failing)}"


def _short(seconds: float) -> str:
    return f"{seconds:,.3g} s" if seconds >= 1 else f"{seconds * 1e3:,.3g} ms"


def _spent(seconds: float, gpus: int, price: float) -> list[str]:
    hours = seconds * gpus / 3600
    told = f"{hours:,.0f}" if hours >= 100 else f"{hours:,.3g}"
    return [duration(seconds), told, *([f"{hours * price:,.0f}"] if price else [])]
