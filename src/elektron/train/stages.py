"""The stages of a run: most objectives have one; two-stage training freezes and copies networks between its two.

A stage has an optimizer and a schedule of its own, so that what begins to learn in it begins as a run does.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from elektron.objectives.objective import Objective, Outcome, Stage
from elektron.train.device import precision
from elektron.train.distributed import ALONE, World
from elektron.train.optimizer import Optimizer, OptimizerConfig
from elektron.train.sharded import ShardedOptimizer
from elektron.train.step import AnyOptimizer, Updates


class Stretch(NamedTuple):
    """A stage under way: its first step, the one after its last, and who makes its updates."""

    begin: int
    end: int
    optimizer: AnyOptimizer
    update: Updates


class Before(NamedTuple):
    """What a checkpoint left of a stage."""

    state: dict[str, Tensor]
    updates: int


def begins(stages: tuple[Stage, ...], total: int) -> list[int]:
    """The first step of each stage, and the end of the last."""
    shares = [stage.share for stage in stages]
    return [round(total * sum(shares[:number]) / sum(shares)) for number in range(len(shares) + 1)]


def stage_at(stages: tuple[Stage, ...], step: int, total: int) -> int:
    """The number of the stage that `step` is in; a run that is over is in its last."""
    return max(number for number, begin in enumerate(begins(stages, total)[:-1]) if begin <= step)


def share_over(stages: tuple[Stage, ...], step: int, total: int) -> float:
    """How much of its stage is over after `step` updates; the last of a stage still belongs to it."""
    number = stage_at(stages, step - 1, total)
    begin, end = begins(stages, total)[number : number + 2]
    return (step - begin) / (end - begin)


def begin_stage(
    model: Objective,
    total: int,
    config: OptimizerConfig,
    seed: int,
    accumulate: int,
    step: int,
    before: Before | None = None,
    *,
    world: World = ALONE,
    is_sharded: bool = False,
) -> Stretch:
    """Enter the stage that `step` of `total` is in: at its first step, or with what a checkpoint left."""
    number = stage_at(model.stages, step, total)
    stage, (begin, end) = model.stages[number], begins(model.stages, total)[number : number + 2]
    model.stage = number
    if step == begin:
        _inherit(model, stage)
    device = next(model.parameters()).device

    def scale(name: str) -> float:
        return float(name.startswith(stage.learns))

    if is_sharded:
        optimizer = ShardedOptimizer(model, config, scale, world)
    else:
        optimizer = Optimizer(model, config, precision(device), scale, world)
    if before is not None and step > begin:
        optimizer.load(*before)

    def forward(original: Tensor, segments: Tensor, keys: Tensor, step: Tensor) -> Outcome:
        return model(original, segments, keys, step / total)

    return Stretch(begin, end, optimizer, Updates(forward, optimizer, seed, accumulate, device))


@torch.no_grad()
def _inherit(model: Objective, stage: Stage) -> None:
    parameters = dict(model.named_parameters())
    for heir, source in stage.inherits:
        for name, parameter in parameters.items():
            if name.startswith(heir):
                parameter.copy_(parameters[source + name.removeprefix(heir)])
