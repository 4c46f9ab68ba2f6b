"""Ranks for tests: processes that find each other as torchrun's do, without its seconds of start-up; and their work."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from elektron.data.batches import Rows
from elektron.data.shards import Data, open_data
from elektron.kernels.counters import seed_key
from elektron.model.encoder import EncoderConfig
from elektron.model.initial import initialise
from elektron.objectives.choices import as_needed
from elektron.objectives.lexicon import lexicon_of
from elektron.objectives.objective import Kind, Objective, ObjectiveConfig
from elektron.objectives.table import OBJECTIVES, build
from elektron.train.distributed import World, joined
from elektron.train.ends import Ends
from elektron.train.loop import TrainConfig, WatchConfig, train
from elektron.train.optimizer import Optimizer, OptimizerConfig
from elektron.train.schedule import ScheduleConfig
from elektron.train.sharded import shard
from elektron.train.stages import begin_stage
from elektron.train.step import Batch, Updates
from ports import free_port

SHAPE = EncoderConfig(
    layers=2,
    width=32,
    heads=2,
    feedforward_width=64,
    embedding_width=16,
    positions=40,
    dropout=0.1,
    attention_dropout=0.1,
)
STEPS, LENGTH, ROWS = 50, 24, 12
PLAIN = TrainConfig(phases=((STEPS, LENGTH, ROWS),))
WATCH = WatchConfig(log_every=1, evaluate_every=25, evaluate_rows=8, checkpoint_every=10)

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["elektron.verbs.pretrain"])  # what takes long to import


def run_ranks(size: int, work: Callable[..., Any], *arguments: object) -> list[Any]:
    """What `work(world, ...)` returns on each of `size` ranks; `work` must be importable."""
    port = free_port()
    pipes, ranks = [], []
    for rank in range(size):
        ours, theirs = _context.Pipe()
        process = _context.Process(target=_be_rank, args=(theirs, rank, size, port, work, arguments))
        process.start()
        theirs.close()
        pipes.append(ours)
        ranks.append(process)
    found = [_received(pipe) for pipe in pipes]
    for process in ranks:
        process.join()
    failed = [error for is_well, error in found if not is_well]
    assert not failed, "\n".join(failed)
    return [result for _, result in found]


def _received(pipe: Connection) -> tuple[bool, Any]:
    try:
        return pipe.recv()
    except EOFError:
        return False, "a rank died"


def _be_rank(pipe: Connection, rank: int, size: int, port: int, work: Callable[..., Any], arguments: tuple) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    try:
        with joined(torch.device("cpu")) as world:
            pipe.send((True, work(world, *arguments)))
    except BaseException:
        pipe.send((False, f"rank {rank}: {traceback.format_exc()}"))


def make_model(data: Data, kind: Kind = "electra") -> Objective:
    config = as_needed(ObjectiveConfig(generator_width=0.5), kind)
    counts = data.train.counts(data.index.vocab_size)
    model = build(SHAPE, config, lexicon_of(data.tokenizer, counts))
    initialise(model, 0)
    return model


def run(
    world: World,
    folder: Path,
    data_folder: Path,
    config: TrainConfig,
    watch: WatchConfig = WATCH,
    device: str = "cpu",
    optimizer: OptimizerConfig = OptimizerConfig(),
) -> int:
    """A whole run, or a rank's part in it; its exit code."""
    data = open_data(data_folder)
    model = make_model(data).to(device)
    if world.is_first:
        folder.mkdir(parents=True, exist_ok=True)
    else:  # the first rank's weights are to count, and nobody else is to need its folder
        folder = folder / "not" / "here"
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 5.0)
    schedule = ScheduleConfig(learning_rate=1e-3, warmup_steps=5)
    return train(folder, model, data, 7, config, schedule, optimizer, watch, world)


def run_signalled(world: World, folder: Path, data_folder: Path, rank: int, step: int) -> int:
    """A run in which one rank gets a signal just before its update makes step `step`."""
    real, asked = Ends.ask, 0

    def ask(self: Ends, place: Tensor) -> None:
        nonlocal asked
        asked += 1
        if (world.rank, asked) == (rank, step):
            os.kill(os.getpid(), signal.SIGTERM)
        real(self, place)

    Ends.ask = ask
    return run(world, folder, data_folder, PLAIN)


class Step(NamedTuple):
    """What a step gave."""

    gradients: np.ndarray
    tallies: list[float]
    norm: float


def second_steps(world: World, data_folder: Path, accumulate: int, is_sharded: bool = False) -> dict[str, Step]:
    """A step by every objective, which all ranks make together: the second, because it sends on its way."""
    data, found = open_data(data_folder), {}
    rows = Rows(data.train, data.tokenizer.specials, LENGTH, seed_key(0))
    for kind in OBJECTIVES:
        model = make_model(data, kind).train()
        model.together = world.together
        if is_sharded:
            shard(model, world, world.size, torch.float32)
        config = OptimizerConfig(clip_norm=0.0)
        stretch = begin_stage(model, 10, config, 0, accumulate, 3, world=world, is_sharded=is_sharded)
        for step in (3, 4):
            batch = rows.batch(step, 8, world.share(8, accumulate))
            *tallies, norm, _ = stretch.update(batch, step, 0.0, len(batch.rows) / 8).tolist()
        found[kind] = Step(_gradients(model), world.sums(tallies), norm)
        stretch.optimizer.give_back(model)
    return found


def _gradients(model: Objective) -> np.ndarray:
    """By name, one after the other: of all that have one."""
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        found[name] = torch.zeros(parameter.shape) if whole is None else whole
    return torch.cat([found[name].flatten() for name in sorted(found)]).numpy().copy()


def order_of_events(world: World, data_folder: Path) -> list[list[str]]:
    """When stretches of gradients are sent, and when the words' gradient is there, in two steps of two parts each."""
    data = open_data(data_folder)
    model = make_model(data).train()
    stretch = begin_stage(model, 10, OptimizerConfig(), 0, 2, 0, world=world)
    assert isinstance(stretch.optimizer, Optimizer)
    reduction, events = stretch.optimizer._reduction, []
    assert reduction is not None
    real, stretches = reduction._send, reduction._stretches

    def send(stretch: slice) -> None:
        events.append("layers" if stretch in stretches else "rest")
        real(stretch)

    reduction._send = send
    model.encoder.embeddings.word.weight.register_post_accumulate_grad_hook(lambda _: events.append("words"))
    rows = Rows(data.train, data.tokenizer.specials, LENGTH, seed_key(0))
    found = []
    for step in (0, 1):
        events.clear()
        stretch.update(rows.batch(step, 8, world.share(8, 2)), step, 1e-3, 1 / world.size)
        found.append(list(events))
    return found


def heard(world: World, said: list[str]) -> list[str]:
    """What the first rank says and the others do not."""
    return [world.told(text if world.is_first else "something else") for text in said]


def run_with_other_data(world: World, folder: Path, data_folder: Path, other: Path) -> int:
    return run(world, folder, data_folder if world.is_first else other, replace(PLAIN, phases=((2, LENGTH, ROWS),)))


def run_poisoned(
    world: World,
    folder: Path,
    data_folder: Path,
    rank: int,
    steps: tuple[int, ...],
    not_finite: Literal["stop", "skip"],
    last: int = STEPS,
) -> int:
    """A run in which some updates of one rank meet a gradient that is no number; it is ended after step `last`."""
    data, now = open_data(data_folder), 0
    model, real = make_model(data), Updates.__call__

    def poisoned(gradient: Tensor) -> Tensor:
        return gradient * torch.nan if world.rank == rank and now in steps else gradient

    def watched(self: Updates, batch: Batch, step: int, learning_rate: float, share: float = 1.0) -> Tensor:
        nonlocal now
        now = step + 1
        if now == last < STEPS:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, batch, step, learning_rate, share)

    model.encoder.embeddings.position.weight.register_hook(poisoned)
    folder.mkdir(parents=True, exist_ok=True)
    schedule, optimizer = ScheduleConfig(learning_rate=1e-3, warmup_steps=5), OptimizerConfig(not_finite=not_finite)
    Updates.__call__ = watched
    try:
        return train(folder, model, data, 7, PLAIN, schedule, optimizer, replace(WATCH, log_every=10), world)
    finally:
        Updates.__call__ = real
