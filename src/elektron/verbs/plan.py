"""elektron plan [FILE.toml ...]: what a run would cost, before it is run. Takes the files and flags of `pretrain`, and
what `elektron bench` has measured on this machine. `--gpus 1 8 64 1024` tells of many (docs/scaling.md)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from elektron.data.tokenizer import Specials
from elektron.kernels.masking import masked_count
from elektron.model.cost import encoder_activations, kernel_activations
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Objective
from elektron.objectives.table import build
from elektron.train.device import choose_device, describe, matrix_peak
from elektron.train.scaling import ClusterConfig
from elektron.train.schedule import Phase, total_steps, total_tokens, with_short
from elektron.verbs import forecast
from elektron.verbs.forecast import UTILISATION, duration
from elektron.verbs.measured import exactly, nearest, rate, settings_of, where
from elektron.verbs.pretrain import configure
from elektron.verbs.runs import RunConfig, glance_at_data

DATASHEET = {"V100": 125e12, "A100": 312e12, "H100 or H200": 989e12}
"""Dense half-precision FLOP/s, by the makers' datasheets."""


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """elektron plan"""

    gpus: tuple[int, ...] = ()
    """Tell what the run would be on so many GPUs like this one, for each number."""
    price_per_gpu_hour: float = 0.0
    """What an hour of one GPU costs, by your provider's price list; 0: costs are not told."""
    cluster: ClusterConfig = ClusterConfig()

    def __post_init__(self) -> None:
        for count in self.gpus:
            if count < 1 or (count > self.cluster.gpus_per_node and count % self.cluster.gpus_per_node):
                nodes = f"whole nodes of {self.cluster.gpus_per_node} (--cluster.gpus-per-node)"
                raise ValueError(f"--gpus {count}: less than a node, or {nodes}")
        if self.price_per_gpu_hour < 0:
            raise ValueError(f"--price-per-gpu-hour cannot be negative: {self.price_per_gpu_hour}")


def main(arguments: Sequence[str]) -> None:
    config = configure(arguments, "elektron plan", __doc__ or "", Config)
    phases = tuple(Phase(*phase) for phase in config.train.phases)
    data = glance_at_data(config)
    vocab_size = data.index.vocab_size if data else config.prepare.vocab_size
    with torch.device("meta"):
        model = build(config.model, config.objective, Lexicon(Specials(0, 1, 2, 3, 4), vocab_size))
    device = choose_device(config.device)
    parts = with_short(phases, config.train.short)
    flops = sum(p.steps * p.rows * p.length * model.flops_per_token(p.length) for p in parts)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _facts(config, model, phases, vocab_size, flops, device.type == "cuda"):
        table.add_row(name, value)
    if data:
        epochs = total_tokens(phases) / data.train.tokens
        table.add_row("corpus", f"{data.train.tokens:,} tokens, read {epochs:.3g} times")
        table.add_row("unigram loss", f"{data.unigram_loss():.3f}, what word frequencies alone give the generator")
    here = _measured_time(config, phases, vocab_size, flops, where(device)) or _time(flops, matrix_peak(device))
    for name, time in [(describe(device), here), *((name, _time(flops, peak)) for name, peak in DATASHEET.items())]:
        table.add_row(f"time on one {name}", time)
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    if config.gpus:
        _tell_of_many(config, model, vocab_size, device, console)


def _tell_of_many(config: Config, model: Objective, vocab_size: int, device: torch.device, console: Console) -> None:
    phases, source = forecast.measured_phases(config, model, vocab_size, device)
    cluster = forecast.with_measured_layers(config, config.cluster, phases, vocab_size, device)
    for grows, what in ((False, "the batch cut among the GPUs"), (True, "a batch for each GPU: another experiment")):
        table = Table(show_header=False, box=None, pad_edge=False)
        lines = forecast.table(phases, config.gpus, grows, cluster, config.price_per_gpu_hour)
        for cells in zip(forecast.header(config.price_per_gpu_hour), *lines, strict=True):
            table.add_row(*cells)
        console.print(f"\n{what}")
        console.print(table, width=20 * (1 + len(lines)))  # numbers that a narrow window breaks are better than none
    saving = forecast.saving(phases, max(config.gpus), cluster)
    console.print(f"\nthe least time is lost to checkpoints and failures if saved {saving}")
    console.print(f"computed from {source}, and from assumptions about the network (docs/scaling.md): not measured")


def _facts(
    config: RunConfig, model: Objective, phases: tuple[Phase, ...], vocab_size: int, flops: float, is_gpu: bool
) -> list[tuple[str, str]]:
    sizes = {name: sum(p.numel() for p in network.parameters()) for name, network in model.networks().items()}
    shared = sum(p.numel() for p in model.encoder.embeddings.parameters())
    trained = sum(p.numel() for p in model.parameters())
    memory = max(_memory(config, model, phase, vocab_size, trained, is_gpu) for phase in phases)
    return [
        ("parameters", f"{trained:,} trained; {shared:,} of them are embeddings"),
        *((name, f"{count:,}") for name, count in sizes.items()),
        ("vocabulary", f"{vocab_size:,}"),
        *((f"phase {n}", f"{p.steps:,} steps of {p.rows:,} x {p.length:,}") for n, p in enumerate(phases, 1)),
        ("tokens", f"{total_tokens(phases):,} in {total_steps(phases):,} steps"),
        ("FLOPs a token", f"{flops / total_tokens(phases) / 1e6:,.1f} million (matrix products, forward and backward)"),
        ("FLOPs", f"{flops:.2e}"),
        ("memory", f"about {memory / 2**30:,.1f} GiB"),
    ]


def _memory(config: RunConfig, model: Objective, phase: Phase, vocab_size: int, trained: int, is_gpu: bool) -> float:
    """Bytes: parameters, gradients and two moments, on a GPU a copy too; what the layers keep; on a CPU the logits,
    their gradient and the noise."""
    rows = phase.rows // config.train.accumulate
    shapes = [encoder.config for encoder in model.encoders()]
    recompute = config.train.recompute
    kept = [
        kernel_activations(shape, recompute) if is_gpu else encoder_activations(shape, phase.length, recompute)
        for shape in shapes
    ]
    logits = 0 if is_gpu else rows * masked_count(phase.length, config.objective.mask_rate) * vocab_size * 3 * 4
    return (18 if is_gpu else 16) * trained + rows * phase.length * sum(kept) + logits


def _measured_time(
    config: RunConfig, phases: tuple[Phase, ...], vocab_size: int, flops: float, device: str
) -> str | None:
    """By what was measured on the device: of these very phases, or else of what is nearest to the longest of them."""
    settings = [settings_of(config, phase, vocab_size) for phase in phases]
    known = [measured for measured in (exactly(device, of_phase) for of_phase in settings) if measured]
    if len(known) == len(phases):
        seconds = sum(phase.steps * measured.seconds for phase, measured in zip(phases, known, strict=True))
        speed, day = rate(total_tokens(phases) / seconds), min(measured.date for measured in known)
        return f"{duration(seconds)} at {speed}, measured by elektron bench on {day}"
    longest = max(phases, key=lambda phase: total_tokens((phase,)))
    part = longest.rows * longest.length / config.train.accumulate
    like = nearest(device, flops / total_tokens(phases), part)
    if not like:
        return None
    batch = f"{like.settings['rows']:,} x {like.settings['length']:,}"
    size = f"{batch} at {like.flops_per_token / 1e6:,.1f} MFLOP a token"
    return f"{_time(flops, like.matrix_peak, like.mfu)}, measured by elektron bench on {like.date} for {size}"


def _time(flops: float, peak: float, utilisation: float = UTILISATION) -> str:
    return f"{duration(flops / peak / utilisation)} at {utilisation:.0%} of {peak / 1e12:,.3g} TFLOP/s"
