"""The loop of a run: what happens on every step, and what happens now and then."""

import json
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

import elektron
from elektron.data.batches import Batch, Rows, prefetched
from elektron.data.shards import Data, Stream
from elektron.data.tokenizer import Specials
from elektron.kernels.counters import fold, seed_key
from elektron.kernels.gpu import use_kernels
from elektron.objectives.objective import Objective
from elektron.train.checkpoint import Checkpoint, Writer, load_newest, restore
from elektron.train.device import describe, keep_freed_memory, matrix_peak, precision
from elektron.train.display import Display
from elektron.train.distributed import ALONE, World
from elektron.train.ends import Ends
from elektron.train.evaluate import evaluate
from elektron.train.health import troubles
from elektron.train.metrics import SINKS, Clock, Metrics, Record, Sink, Tally
from elektron.train.optimizer import OptimizerConfig
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
from elektron.train.sharded import shard
from elektron.train.stages import Before, begin_stage, share_over
from elektron.train.step import AnyOptimizer

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
    shard: int = 1
    """Ranks that share one copy of the parameters, for models that do not fit a GPU; 1: each has its own."""
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
        if self.shard < 1:
            raise ValueError(f"--train.shard is a number of ranks, at least 1, not {self.shard}")
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
    deadline: float = 0.0
    """Seconds after which the run saves and ends, with exit code 75, for the same command to go on later; 0: none."""
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
    world: World = ALONE,
) -> int:
    """Train to the last step, to a signal or to the deadline, from the newest checkpoint if there is one. All ranks of
    a world call it, and the first one writes. Returns the exit code (`Ends.code`)."""
    device = next(model.parameters()).device
    phases = tuple(Phase(*phase) for phase in config.phases)
    total = total_steps(phases)
    make_batch = _batch_maker(data, phases, config, seed, device, world)
    saved = _newest(run, model, data, world)
    _set_up(model, config, device, world)
    step, tally = _resume(saved, model.tallies, world)
    begin = partial(begin_stage, model, total, optimizer_config, seed, config.accumulate)
    begin = partial(begin, world=world, is_sharded=config.shard > 1)
    stretch = begin(step, Before(saved.optimizer, saved.state["updates"]) if saved else None)
    ends = Ends(world, watch.deadline)

    with (
        Display(total, step, is_quiet=not world.is_first) as display,
        closing(_metrics(run, step, display, watch, world)) as metrics,
        Writer(run, watch.keep_checkpoints) as writer,
        ends.listening(),
        closing(prefetched(make_batch, step, total)) as batches,
    ):
        if "run" not in metrics.last:
            metrics.write(_facts(step, model, data, with_short(phases, config.short), device, world))
        clock = Clock(device)
        for batch in batches:
            if step == stretch.end:
                stretch.optimizer.give_back(model)
                stretch = begin(step)
            phase = phases[phase_at(phases, step)[0]]
            rate = learning_rate(schedule, step - stretch.begin, stretch.end - stretch.begin)
            tokens = phase.rows * phase.length
            ends.ask(stretch.optimizer.notes)
            tally.add(stretch.update(batch, step, rate, batch[0].numel() / tokens))
            ends.answer(stretch.optimizer.notes)
            step += 1
            clock.count(tokens, model.flops_per_token(batch[0].shape[1]))
            display.advance(step)

            if step % watch.log_every == 0 or step == total:
                _log(step, rate, model, tally, clock, metrics, world)
            if step % watch.evaluate_every == 0 or step == total:
                with clock.stopped():
                    _evaluate(step, total, model, data, phase, watch.evaluate_rows, metrics)
            if step % watch.checkpoint_every == 0 or step == total or ends.code:
                with clock.stopped():
                    _save(step, stretch.optimizer, data, tally, metrics, writer, world)
            if ends.code:
                break
    return ends.code


def _set_up(model: Objective, config: TrainConfig, device: torch.device, world: World) -> None:
    """Have the model compute as the config says, with the weights of the first rank."""
    if device.type == "cpu":
        keep_freed_memory()
    use_kernels(config.kernels and config.shard == 1)
    for encoder in model.encoders():
        encoder.recompute = config.recompute
    model.together = world.together
    model.train()
    world.spread(parameter.data for parameter in model.parameters())
    if config.shard > 1:
        shard(model, world, config.shard, precision(device))


def _metrics(run: Path, step: int, display: Display, watch: WatchConfig, world: World) -> Metrics:
    if not world.is_first:
        return Metrics(None, step, [])
    return Metrics(run, step, [Sink(display.show), *(SINKS[name](run) for name in watch.to)])


def _batch_maker(
    data: Data, phases: tuple[Phase, ...], config: TrainConfig, seed: int, device: torch.device, world: World
) -> Callable[[int], Batch]:
    """This rank's share of the batch of any step of the run."""
    specials, keys = data.tokenizer.specials, [fold(fold(seed_key(seed), _TRAIN), n) for n in range(len(phases))]
    rows = [Rows(data.train, specials, p.length, key) for p, key in zip(phases, keys, strict=True)]
    shorter = [
        {times: Rows(data.train, specials, p.length // times, fold(key, times)) for times in SHORTER if config.short}
        for p, key in zip(phases, keys, strict=True)
    ]
    for phase, available in zip(phases, rows, strict=True):
        if available.count < phase.rows:
            raise ValueError(
                f"the corpus is smaller than one batch: {data.train.tokens} tokens give {available.count} rows of "
                f"{phase.length}, a batch has {phase.rows}; add text, or make --train.phases smaller"
            )
        if phase.rows // config.accumulate < world.size:
            raise ValueError(
                f"{phase.rows} rows in {config.accumulate} part(s) leave nothing for some of {world.size} ranks: "
                "start fewer, or have larger batches (--train.phases)"
            )

    def make(step: int) -> Batch:
        number, step_of_phase = phase_at(phases, step)
        times, step_of_cut = cut_at(config.short, step_of_phase)
        source = rows[number] if times == 1 else shorter[number][times]
        size = times * phases[number].rows
        batch = source.batch(step_of_cut, size, world.share(size, config.accumulate))
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


def _facts(
    step: int, model: Objective, data: Data, phases: tuple[Phase, ...], device: torch.device, world: World
) -> Record:
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
            "device": f"{world.size} x {describe(device)}" if world.size > 1 else describe(device),
            "torch": torch.__version__,
            "elektron": elektron.__version__,
            "ranks": world.size,
            **({"matrix_peak": world.size * matrix_peak(device)} if device.type == "cuda" else {}),
        },
    }


def _newest(run: Path, model: Objective, data: Data, world: World) -> Checkpoint | None:
    """The newest checkpoint, its weights put into the model. Ranks that are not the first hear of it without the
    tensors, which only the first needs to be able to read."""
    saved = load_newest(run) if world.is_first else None
    digest, *found = json.loads(
        world.told(json.dumps([data.index.digest, *([saved.step, saved.state] if saved else [])]))
    )
    if digest != data.index.digest:
        raise ValueError(f"rank {world.rank} has other data than the first rank: they must be given the same")
    if not found:
        return None
    step, state = found
    if state["data"] != digest:
        raise ValueError(f"the data has changed since step {step} of {run}: begin another run with it")
    if saved is None:
        return Checkpoint(step, {}, {}, state)
    restore(model, saved.model)
    return saved


def _resume(saved: Checkpoint | None, tallies: tuple[str, ...], world: World) -> tuple[int, Tally]:
    """A checkpoint's step, and what had been summed up since the last record, which is the first rank's to keep."""
    names = *tallies, *_OF_ALL
    if saved is None:
        return 0, Tally(names)
    sums = saved.state["sums"]
    mine = {name: value if world.is_first or name in _OF_ALL else 0.0 for name, value in sums.items()}
    return saved.step, Tally(names, mine, saved.state["steps"])


_OF_ALL = ("gradient_norm", "skipped")
"""What every rank knows of the whole batch."""


def _sums(tally: Tally, world: World) -> dict[str, float]:
    """Over all ranks."""
    sums = tally.read()
    names = [name for name in sums if name not in _OF_ALL]
    return sums | dict(zip(names, world.sums([sums[name] for name in names]), strict=True))


def _save(
    step: int, optimizer: AnyOptimizer, data: Data, tally: Tally, metrics: Metrics, writer: Writer, world: World
) -> None:
    sums = _finite(_sums(tally, world), step, metrics)
    weights, moments, updates = optimizer.snapshot()
    if world.is_first:
        state = {"sums": sums, "steps": tally.steps, "updates": updates, "data": data.index.digest}
        metrics.sync()
        writer.write(Checkpoint(step, weights, moments, state))


def _finite(sums: dict[str, float], step: int, metrics: Metrics) -> dict[str, float]:
    """The sums, if they are numbers: nothing is recorded or saved of a run that has lost its way."""
    if all(map(math.isfinite, sums.values())):
        return sums
    message = f"the loss or a gradient is not finite at step {step} or shortly before"
    metrics.write({"kind": "health", "step": step, "message": message})
    raise ValueError(f"{message}; what is saved is from before: lower --schedule.learning-rate in a new run")


def _log(step: int, rate: float, model: Objective, tally: Tally, clock: Clock, metrics: Metrics, world: World) -> None:
    """Write the means since the last record, and how many steps were left out."""
    sums, steps = _finite(_sums(tally, world), step, metrics), tally.steps
    skipped = int(sums["skipped"])
    tally.clear()
    if skipped:
        message = f"{skipped} of {steps} steps had gradients that are not finite, and were skipped"
        metrics.write({"kind": "health", "step": step, "message": message})
    if skipped == steps:
        raise ValueError(f"all {steps} steps before step {step} were skipped: their gradients are not finite")
    record = {
        "kind": "train",
        "step": step,
        **model.summary(sums),
        "gradient_norm": sums["gradient_norm"] / (steps - skipped),
        "learning_rate": rate,
        **({"skipped": skipped} if skipped else {}),
        "clock": clock.lap(metrics.last["run"]["clock"].get("matrix_peak")),
    }
    metrics.write(record)


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
