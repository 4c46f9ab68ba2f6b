"""Fine-tuning: a pre-trained encoder and a new head learn a task, in minutes rather than days.

The recipe is the paper's (Clark et al., 2020, arXiv 2003.10555, appendix): lower layers learn more slowly. It is the
same step as in pre-training (train/step.py), recorded once for each length of rows; several seeds run side by side on
a GPU, which one small model does not fill.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from elektron.data.examples import Examples, batches, in_order, rounded
from elektron.kernels.counters import fold, seed_key
from elektron.model.encoder import EncoderConfig
from elektron.model.task_heads import Tuned, depth_of
from elektron.objectives.supervised import Outcome, Reduction, learn
from elektron.train.device import precision
from elektron.train.optimizer import Optimizer, OptimizerConfig
from elektron.train.schedule import ScheduleConfig, learning_rate
from elektron.train.step import Updates

ORDER = 3
_PREDICTED_TOKENS = 1 << 15
"""Of a batch of rows to predict."""


@dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """How a task is learned. 0 stands for the paper's value for the model's size, or the task's."""

    learning_rate: float = 0.0
    """The peak; the paper's is 3e-4 for small, 1e-4 for base, 5e-5 for large."""
    layer_decay: float = 0.0
    """Factor of the learning rate from each layer to the one below it; the paper's is 0.8, and 0.9 for large."""
    decay_from_top: bool = False
    """The original's off-by-one: the topmost layer is slowed down twice."""
    epochs: float = 0.0
    """Times the training examples are seen."""
    batch: int = 32
    """Examples of an update."""
    window: int = 32
    """Batches whose examples are sorted by length together, so that little of them is padding; 1: any with any."""
    warmup: float = 0.1
    """Share of the updates in which the learning rate rises."""
    dropout: float | None = None
    """Of the encoder and the head; as in pre-training if not given: who has never met dropout learns little with it."""
    weight_decay: float = 0.0
    """Of AdamW; the paper's is 0, its code's 0.01."""
    loss: Reduction = "mean"
    """Of a batch: the mean of its examples' losses, or the original's sum, whose gradients are clipped at nearly every
    update."""
    schedule: Literal["linear", "product"] = "linear"
    """After the warm-up: linear to zero, or the original's product of both from the first step."""
    bias_correction: bool = True
    """Adam's; the original has none."""
    choose: Literal["last", "best"] = "last"
    """The network of the last epoch, or of the one that does best on the development set, whose score is then too
    good to be compared."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "layer_decay", "epochs", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"--recipe.{name.replace('_', '-')} must not be negative: {getattr(self, name)}")
        if min(self.batch, self.window) < 1 or not 0 <= self.warmup < 1 or not 0 <= (self.dropout or 0) < 1:
            raise ValueError(
                "--recipe.batch and --recipe.window are at least 1, --recipe.warmup and --recipe.dropout in [0, 1): "
                f"{self.batch}, {self.window}, {self.warmup}, {self.dropout}"
            )

    def resolved(self, shape: EncoderConfig, epochs: float) -> "RecipeConfig":
        """With the paper's values for the model's size (small is up to 256 wide, base up to 768) and the task, and the
        model's own dropout."""
        rate = 3e-4 if shape.width <= 256 else 1e-4 if shape.width <= 768 else 5e-5
        return replace(
            self,
            learning_rate=self.learning_rate or rate,
            layer_decay=self.layer_decay or (0.8 if shape.width <= 768 else 0.9),
            epochs=self.epochs or epochs,
            dropout=shape.dropout if self.dropout is None else self.dropout,
        )


def layer_scale(name: str, layers: int, decay: float, from_top: bool) -> float:
    """The factor of a parameter's learning rate: 1 for the head, `decay` for the top layer, its square for the next."""
    distance = layers + 1 - depth_of(name, layers)
    return decay ** (distance + (from_top and distance > 0))


class Tuning(NamedTuple):
    """What became of a network."""

    network: Tuned
    weights: dict[str, Tensor]
    """Its parameters in float32, whatever it computes in."""
    losses: list[float]
    """Of each update."""

    def whole(self) -> Tuned:
        """The network with its parameters in float32, on the CPU."""
        for name, parameter in self.network.named_parameters():
            parameter.data = self.weights[name].cpu()
        return self.network


class Cost(NamedTuple):
    """What it took."""

    steps: int
    seconds: float
    padding: float
    """Share of the tokens that were none."""


def tune(
    networks: Sequence[Tuned],
    examples: Examples,
    recipe: RecipeConfig,
    seeds: Sequence[int],
    score: Callable[[Tuned], float],
    watched: Callable[[range], Iterable[int]] = iter,
) -> tuple[list[Tuning], Cost]:
    """Teach each network with its own seed, side by side, by a resolved recipe. `score` tells how well one does, where
    the recipe asks for the best; `watched` hands out the steps, and may show them."""
    steps, epoch = (math.ceil(len(examples) * epochs / recipe.batch) for epochs in (recipe.epochs, 1))
    learners = [_Learner(*pair, examples, recipe, steps) for pair in zip(networks, seeds, strict=True)]
    begin = time.perf_counter()
    for step in watched(range(1, steps + 1)):
        for learner in learners:
            learner.advance()
            if recipe.choose == "best" and (step % epoch == 0 or step == steps):
                learner.consider(score)
    found = [learner.done() for learner in learners]
    seconds = time.perf_counter() - begin
    tokens = sum(learner.tokens for learner in learners)
    return found, Cost(steps, seconds, 1 - sum(learner.read for learner in learners) / tokens)


class _Learner:
    """A network, its optimizer and its place in the examples."""

    def __init__(self, network: Tuned, seed: int, examples: Examples, recipe: RecipeConfig, steps: int) -> None:
        shape = network.encoder.config
        device = next(network.parameters()).device
        optimizer = Optimizer(
            network,
            OptimizerConfig(weight_decay=recipe.weight_decay, bias_correction=recipe.bias_correction),
            precision(device),
            lambda name: layer_scale(name, shape.layers, recipe.layer_decay, recipe.decay_from_top),
        )
        self._network, self._examples, self._optimizer = network.train(), examples, optimizer
        self._seed, self._device, self._steps = seed, device, steps
        self._loss: Reduction = recipe.loss
        self._schedule = ScheduleConfig(
            kind=recipe.schedule,
            learning_rate=recipe.learning_rate,
            warmup_steps=round(recipe.warmup * steps),
        )
        self._order = batches(examples.lengths, recipe.batch, steps, recipe.window, fold(seed_key(seed), ORDER))
        self._places = torch.arange(recipe.batch, dtype=torch.int32, device=device)
        self._updates: dict[int, Updates] = {}
        self._losses: list[Tensor] = []
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._follow()
        self._best: tuple[float, Tensor] | None = None
        self.tokens = self.read = 0

    def advance(self) -> None:
        """One update."""
        step, rows = len(self._losses), next(self._order)
        length = int(self._examples.lengths[rows].max())
        if self._stream is not None:
            length = rounded(length, self._network.encoder.config.positions)
        if length not in self._updates:
            self._updates[length] = self._updates_of(length)
        self.tokens += len(rows) * length
        self.read += int(self._examples.lengths[rows].sum())
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            batch = torch.from_numpy(rows).to(self._device, non_blocking=True), self._places
            rate = learning_rate(self._schedule, step, self._steps)
            self._losses.append(self._updates[length](batch, step, rate)[0].clone())

    def _updates_of(self, length: int) -> Updates:
        # not self: what refers to itself outlives its use
        network, examples, loss = self._network, self._examples, self._loss

        def forward(rows: Tensor, keys: Tensor, step: Tensor) -> Outcome:
            return learn(network, examples.inputs(rows, length), keys, loss)

        return Updates(forward, self._optimizer, self._seed, 1, self._device, self._pool)

    def consider(self, score: Callable[[Tuned], float]) -> None:
        """Remember the network as it is now, if it is the best so far."""
        self._wait()
        found = score(self._network)
        self._network.train()
        if self._best is None or found > self._best[0]:
            self._best = found, self._optimizer.values.clone()
            self._follow()

    def _follow(self) -> None:
        """Go on after what was asked for outside."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def done(self) -> Tuning:
        self._wait()
        if self._best is not None:
            self._optimizer.put(self._best[1])
        losses = torch.stack(self._losses).tolist() if self._losses else []
        if not np.isfinite(losses).all():
            raise ValueError(f"the loss of seed {self._seed} is not finite: lower --recipe.learning-rate")
        return Tuning(self._network.eval(), self._optimizer.weights(), losses)


@torch.no_grad()
def predict(network: Tuned, examples: Examples) -> list[np.ndarray]:
    """The scores of each example: [C], or [T, C] with a line for each of its tokens; or what a `JointHead` says."""
    device = next(network.parameters()).device
    network.eval()
    found: list[np.ndarray] = [np.empty(0)] * len(examples)
    for rows in in_order(examples.lengths, _PREDICTED_TOKENS):
        length = int(examples.lengths[rows].max())
        inputs = examples.inputs(torch.from_numpy(rows).to(device), length)
        scores = network(inputs.tokens, inputs.segments, inputs.mask).float().cpu().numpy()
        for row, of_row in zip(rows.tolist(), scores, strict=True):
            found[row] = of_row[: examples.lengths[row]] if network.head.of_tokens else of_row
    return found
