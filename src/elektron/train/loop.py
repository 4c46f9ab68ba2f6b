"""The loop of a run: what happens on every step, and what happens now and then."""

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Literal

import torch

import elektron
from elektron.data.batches import Batch, Rows, prefetched
from elektron.data.shards import Data, Stream
from elektron.data.tokenizer import Specials
from elektron.kernels.counters import fold, seed_key
from elektron.kernels.gpu import use_kernels
from elektron.objectives.objective import Objective
from elektron.train.checkpoint import Checkpoint, load_newest, restore, save
from elektron.train.device import describe, keep_freed_memory, matrix_peak
from elektron.train.display import Display
from elektron.train.evaluate import evaluate
from elektron.train.health import troubles
from elektron.train.metrics import SINKS, Clock, Metrics, Record, Sink, Tally
from elektron.train.optimizer import Optimizer, OptimizerConfig
from elektron.train.schedule import (
    SHORTER,
    Phase,
    ScheduleConfig,
    cut_at,
    learning_rate,
    phase_at,
    total_steps,
    total_tokens,
    with_short,
)
from elektron.train.stages import begin_stage, share_over

_TRAIN, _HELD = 1, 2


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How the batches go through the model."""

    phases: tuple[tuple[int, int, int], ...] = ((1_000_000, 128, 128),)
    """(steps, row length, rows a step) of each phase in turn."""
    short: float = 0.0
    """Share of the steps whose rows are shorter, half, a quarter and an eighth as long in turn, and as many more:
    networks that have seen full rows only see little in short texts."""
    accumulate: int = 1
    """Parts a batch is cut into, to fit memory: gradients are summed over them before each update."""
    recompute: bool = False
    """Gradient checkpointing: compute the layers again in the backward pass instead of keeping their values."""
    kernels: bool = True
    """On a GPU, train by Elektron's own kernels; without them by plain PyTorch, slower and in more memory."""

    def __post_init__(self) -> None:
        for steps, length, rows in self.phases:
            if min(steps, length, rows) < 1:
                raise ValueError(f"a phase is (steps, row length, rows), all at least 1: {(steps, length, rows)}")
            if self.accumulate < 1 or rows % self.accumulate:
                raise ValueError(f"--train.accumulate {self.accumulate} does not divide a batch of {rows} rows")
            if self.short and length % SHORTER[-1]:
                raise ValueError(f"--train.short cuts rows into {SHORTER[-1]} parts, which {length} tokens are not")
        if not 0 <= self.short < 1:
            raise ValueError(f"--train.short is a share of the steps, not {self.short}")
        if not self.phases:
            raise ValueError("--train.phases is empty: there is nothing to train")


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """How often a run is looked at and saved. Nothing here changes what is learned."""

    log_every: int = 100
    """Steps between records of the training losses."""
    evaluate_every: int = 1000
    """Steps between held-out evaluations."""
    evaluate_rows: int = 512
    """Rows of held-out text in an evaluation, or all there are if fewer."""
    checkpoint_every: int = 1000
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Checkpoints to keep."""
    to: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Also show the metrics there."""

    def __post_init__(self) -> None:
        for name in ("log_every", "evaluate_every", "evaluate_rows", "checkpoint_every", "keep_checkpoints"):
            if getattr(self, name) < 1:
                raise ValueError(f"--watch.{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}")


def train(
    run: Path,
    model: Objective,
    data: Data,
    seed: int,
    config: TrainConfig,
    schedule: ScheduleConfig,
    optimizer_config: OptimizerConfig,
    watch: WatchConfig,
) -> int:
    """Train to the last step or to a signal, from the newest checkpoint if there is one. Returns the signal, or 0."""
    device = next(model.parameters()).device
    if device.type == "cpu":
        keep_freed_memory()
    use_kernels(config.kernels)
    phases = tuple(Phase(*phase) for phase in config.phases)
    total = total_steps(phases)
    make_batch = _batch_maker(data, phases, config.short, seed, device)
    for encoder in model.encoders():
        encoder.recompute = config.recompute
    saved = _newest(run, data)
    if saved:
        restore(model, saved.model)
    step, tally = _resume(saved, model.tallies)
    begin = partial(begin_stage, model, total, optimizer_config, seed, config.accumulate)
    stretch = begin(step, saved.optimizer if saved else None)

    with (
        Display(total, step) as display,
        closing(Metrics(run, step, [Sink(display.show), *(SINKS[name](run) for name in watch.to)])) as metrics,
        _caught_signals() as signals,
        closing(prefetched(make_batch, step, total)) as batches,
    ):
        if "run" not in metrics.last:
            metrics.write(_facts(step, model, data, with_short(phases, config.short), device))
        clock = Clock(device)
        model.train()
        for batch in batches:
            if step == stretch.end:
                stretch.give_back(model)
                stretch = begin(step)
            phase = phases[phase_at(phases, step)[0]]
            rate = learning_rate(schedule, step - stretch.begin, stretch.end - stretch.begin)
            tally.add(stretch.update(batch, step, rate))
            step += 1
            clock.count(batch[0].numel(), model.flops_per_token(batch[0].shape[1]))
            display.advance(step)

            if step % watch.log_every == 0 or step == total:
                metrics.write(_train_record(step, rate, model, tally, clock, metrics))
            if step % watch.evaluate_every == 0 or step == total:
                with clock.stopped():
                    _evaluate(step, total, model, data, phase, watch.evaluate_rows, metrics)
            if step % watch.checkpoint_every == 0 or step == total or signals:
                with clock.stopped():
                    _save(run, step, stretch.optimizer, data, tally, metrics, watch.keep_checkpoints)
            if signals:
                break
    return signals[0] if signals else 0


def _batch_maker(
    data: Data, phases: tuple[Phase, ...], short: float, seed: int, device: torch.device
) -> Callable[[int], Batch]:
    """The batch of any step of the run."""
    specials, keys = data.tokenizer.specials, [fold(fold(seed_key(seed), _TRAIN), n) for n in range(len(phases))]
    rows = [Rows(data.train, specials, p.length, key) for p, key in zip(phases, keys, strict=True)]
    shorter = [
        {times: Rows(data.train, specials, p.length // times, fold(key, times)) for times in SHORTER if short}
        for p, key in zip(phases, keys, strict=True)
    ]
    for phase, available in zip(phases, rows, strict=True):
        if available.count < phase.rows:
            raise ValueError(
                f"the corpus is smaller than one batch: {data.train.tokens} tokens give {available.count} rows of "
                f"{phase.length}, a batch has {phase.rows}; add text, or make --train.phases smaller"
            )

    def make(step: int) -> Batch:
        number, step_of_phase = phase_at(phases, step)
        times, step_of_cut = cut_at(short, step_of_phase)
        source = rows[number] if times == 1 else shorter[number][times]
        batch = source.batch(step_of_cut, times * phases[number].rows)
        return Batch(*(tensor.pin_memory() for tensor in batch)) if device.type == "cuda" else batch

    return make


def held_batches(data: Data, length: int, count: int, size: int) -> list[Batch]:
    """The first `count` rows of the held-out text (or all, if there are fewer), `size` at a time, always the same."""
    return first_batches(data.held, data.tokenizer.specials, length, count, size)


def first_batches(stream: Stream, specials: Specials, length: int, count: int, size: int) -> list[Batch]:
    """The same of any stream."""
    rows = Rows(stream, specials, length, fold(seed_key(0), _HELD))
    whole = rows.batch(0, min(count, rows.count))
    return [Batch(*parts) for parts in zip(*(tensor.split(size) for tensor in whole), strict=True)]


def _facts(step: int, model: Objective, data: Data, phases: tuple[Phase, ...], device: torch.device) -> Record:
    sizes = {name: sum(p.numel() for p in network.parameters()) for name, network in model.networks().items()}
    tokens = total_tokens(phases)
    flops = sum(p.steps * p.rows * p.length * model.flops_per_token(p.length) for p in phases)
    return {
        "kind": "run",
        "step": step,
        "parameters": sum(p.numel() for p in model.parameters()),
        "networks": sizes,
        "vocab_size": data.index.vocab_size,
        "corpus_tokens": data.train.tokens,
        "held_tokens": data.held.tokens,
        "steps": total_steps(phases),
        "tokens": tokens,
        "epochs": tokens / data.train.tokens,
        "flops": flops,
        "unigram_loss": data.unigram_loss(),
        "clock": {
            "device": describe(device),
            "torch": torch.__version__,
            "elektron": elektron.__version__,
            **({"matrix_peak": matrix_peak(device)} if device.type == "cuda" else {}),
        },
    }


def _newest(run: Path, data: Data) -> Checkpoint | None:
    saved = load_newest(run)
    if saved and saved.state["data"] != data.index.digest:
        raise ValueError(f"the data has changed since step {saved.step} of {run}: begin another run with it")
    return saved


def _resume(saved: Checkpoint | None, tallies: tuple[str, ...]) -> tuple[int, Tally]:
    """A checkpoint's step, and what had been summed up since the last record."""
    names = *tallies, "gradient_norm"
    if saved is None:
        return 0, Tally(names)
    return saved.step, Tally(names, saved.state["sums"], saved.state["steps"])


def _save(run: Path, step: int, optimizer: Optimizer, data: Data, tally: Tally, metrics: Metrics, keep: int) -> None:
    state = {"sums": _finite(tally.read(), step, metrics), "steps": tally.steps, "data": data.index.digest}
    metrics.sync()
    save(run, Checkpoint(step, optimizer.weights(), optimizer.state(), state), keep)


def _finite(sums: dict[str, float], step: int, metrics: Metrics) -> dict[str, float]:
    """The sums, if they are numbers: nothing is recorded or saved of a run that has lost its way."""
    if all(map(math.isfinite, sums.values())):
        return sums
    message = f"the loss or a gradient is not finite at step {step} or shortly before"
    metrics.write({"kind": "health", "step": step, "message": message})
    raise ValueError(f"{message}; what is saved is from before: lower --schedule.learning-rate in a new run")


def _train_record(step: int, rate: float, model: Objective, tally: Tally, clock: Clock, metrics: Metrics) -> Record:
    """The means since the last record."""
    sums, steps = _finite(tally.read(), step, metrics), tally.steps
    tally.clear()
    return {
        "kind": "train",
        "step": step,
        **model.summary(sums),
        "gradient_norm": sums["gradient_norm"] / steps,
        "learning_rate": rate,
        "clock": clock.lap(metrics.last["run"]["clock"].get("matrix_peak")),
    }


def _evaluate(step: int, total: int, model: Objective, data: Data, phase: Phase, rows: int, metrics: Metrics) -> None:
    """Write the held-out record, and in words what has gone wrong since the one before."""
    batches = held_batches(data, phase.length, rows, phase.rows)
    found = evaluate(model, batches, next(model.parameters()).device)
    record = {"kind": "held", "step": step} | _finite(found, step, metrics)
    before = metrics.last.get("held")
    context = metrics.last["run"]["unigram_loss"], model.config.mask_rate
    known = troubles(before, *context, share_over(model.stages, before["step"], total)) if before else {}
    metrics.write(record)
    for name, message in troubles(record, *context, share_over(model.stages, step, total)).items():
        if name not in known:
            metrics.write({"kind": "health", "step": step, "message": message})


@contextmanager
def _caught_signals() -> Iterator[list[int]]:
    """SIGTERM and SIGINT are noted in the list and heard after the step; a second one is not waited for."""
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
