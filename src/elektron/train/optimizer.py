"""AdamW over one flat buffer: parameters, gradients and moments lie in one tensor each, so that clipping, the update
and, between ranks, the sum of gradients are single operations. Muon, where it is wanted, takes the matrices of layers
over, with AdamW's first moment.

The buffer is float32. Where the model computes in a lower precision it reads a copy of the buffer, made as part of each
update; gradients are summed in float32 all the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from elektron.kernels.adam import ALIGNMENT, adamw_
from elektron.kernels.gpu import runs_on
from elektron.kernels.muon import follow_, momenta
from elektron.model.weights import is_lowered
from elektron.train.device import on_host
from elektron.train.distributed import ALONE, Reduction, World
from elektron.train.muon import Muon, matrices_of_layers, precision_of_directions

NOTES = 2
"""Numbers that ranks may tell each other with every update."""
SETTLED = 1e9
"""A step count at which Adam's bias corrections are 1 to the last bit, and one more is the same in float32."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW, alone or beside Muon; norms and biases are not decayed."""

    kind: Literal["adamw", "muon"] = "adamw"
    """What updates the weight matrices inside the layers of both networks: AdamW, or Muon, whose updates are
    orthogonal matrices as large as AdamW's. All else is AdamW's either way, and the settings below serve for both."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.999
    """Decay of the second moment."""
    epsilon: float = 1e-6
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """Decoupled decay, multiplied by the learning rate."""
    clip_norm: float = 1.0
    """Largest norm of all gradients together; 0 for no limit."""
    bias_correction: bool = True
    """Correct the moments for their start at zero; the original does not."""
    not_finite: Literal["stop", "skip"] = "stop"
    """Where a gradient is not a finite number: stop the run, whose last checkpoint is from before; or leave the step
    out, and count it."""

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError(f"--optimizer.beta1 and beta2 lie in [0, 1): {self.beta1}, {self.beta2}")
        for name in ("epsilon", "weight_decay", "clip_norm"):
            if getattr(self, name) < 0:
                raise ValueError(f"--optimizer.{name.replace('_', '-')} must not be negative: {getattr(self, name)}")


class Snapshot(NamedTuple):
    """What a checkpoint keeps."""

    weights: dict[str, Tensor]
    state: dict[str, Tensor]
    updates: int


class _Group(NamedTuple):
    """A stretch of the buffer whose parameters are treated alike."""

    where: slice
    weight_decay: float
    scale: float
    """Of the learning rate."""
    muon: Muon | None
    """Who moves the values; if nobody else, AdamW does. The moments are AdamW's in any case."""

    @property
    def adam_scale(self) -> float:
        return 0.0 if self.muon else self.scale


class Updated(NamedTuple):
    """What became of an update, on the device."""

    norm: Tensor
    """Of the gradients before clipping; what stands still has no part in it."""
    is_skipped: Tensor | None
    """Whether it was left out; None where none ever is."""


class Optimizer:
    """Takes a model's float32 parameters into its flat buffer and updates them there. The model is left to compute in
    `dtype`: its parameters are then the copies. `scale` gives the factor of a parameter's learning rate by its name.
    In a world of several ranks, all of them make the same update, of the sum of their gradients."""

    is_recordable = True
    """Whether a GPU's graph may replay it."""

    def __init__(
        self,
        model: nn.Module,
        config: OptimizerConfig,
        dtype: torch.dtype = torch.float32,
        scale: Callable[[str], float] = lambda name: 1.0,
        world: World = ALONE,
    ) -> None:
        self._config = config
        matrices = matrices_of_layers(model) if config.kind == "muon" else {}
        kinds = {
            name: (not is_decayed(name), scale(name), bool(scale(name)) and name in matrices)
            for name, _ in model.named_parameters()
        }
        named = sorted(model.named_parameters(), key=lambda item: kinds[item[0]])  # stable; decayed first
        self._places: dict[str, tuple[slice, torch.Size]] = {}
        self._groups: list[_Group] = []
        start = 0
        for kind in sorted(set(kinds.values())):
            first = start
            for name, parameter in named:
                if kinds[name] == kind:
                    self._places[name] = slice(start, start + parameter.numel()), parameter.shape
                    start = -(-(start + parameter.numel()) // ALIGNMENT) * ALIGNMENT
            of_muon = {name: count for name, count in matrices.items() if kind[2] and kinds[name] == kind}
            muon = Muon(self._places, of_muon, first) if of_muon else None
            self._groups.append(_Group(slice(first, start), 0.0 if kind[0] else config.weight_decay, kind[1], muon))
        self.values = torch.zeros(start, device=named[0][1].device)
        sent = torch.zeros(start + ALIGNMENT, device=self.values.device)
        self.gradients, self.notes = sent[:start], sent[start : start + NOTES]
        self._moments = {"first": torch.zeros_like(self.values), "second": torch.zeros_like(self.values)}
        self._updates = torch.zeros(len(self._groups), device=self.values.device)
        self._set_updates(0)
        self._scales = self._scales_of_blocks()
        for name, parameter in named:
            self.values[self._places[name][0]] = parameter.detach().flatten()
        self._copies = self.values if dtype == torch.float32 else self.values.to(dtype)
        for name, parameter in named:
            where, shape = self._places[name]
            parameter.data = (self._copies if is_lowered(name) else self.values)[where].view(shape)
            parameter.grad_dtype = torch.float32
            parameter.grad = self.gradients[where].view(shape)
        places = {name: where for name, (where, _) in self._places.items()}
        self._world, self._reduction = world, Reduction(model, places, sent) if world.is_joined else None

    def _scales_of_blocks(self) -> Tensor | None:
        if all(group.adam_scale == 1.0 for group in self._groups):
            return None
        scales = torch.empty(len(self.values) // ALIGNMENT, device=self.values.device)
        for group in self._groups:
            scales[group.where.start // ALIGNMENT : group.where.stop // ALIGNMENT] = group.adam_scale
        return scales

    def _set_updates(self, updates: int) -> None:
        self._updates.fill_(updates if self._config.bias_correction else SETTLED)

    def zero(self) -> None:
        self.gradients.zero_()

    def backward(self, loss: Tensor, is_last: bool) -> None:
        """Add a loss's gradients to what is there; after the `is_last` one they are summed over ranks."""
        if self._reduction is not None and is_last:
            self._reduction.listen()
        loss.backward()

    def gather(self) -> None:
        """Go on with the gradients, and the notes, of all ranks."""
        if self._reduction is not None:
            self._reduction.finish()

    def update(self, learning_rate: float | Tensor) -> Updated:
        """Clip and step."""
        for group in self._groups:
            if not group.scale:
                self.gradients[group.where].zero_()
        norm = self.gradients.norm()
        is_bad = ~norm.isfinite() if self._config.not_finite == "skip" else None
        if runs_on(self.values) and isinstance(learning_rate, Tensor):
            self._update_at_once(norm, learning_rate, is_bad)
        else:
            self._update_by_torch(norm, learning_rate, is_bad)
        return Updated(norm, is_bad)

    def _update_at_once(self, norm: Tensor, learning_rate: Tensor, is_bad: Tensor | None) -> None:
        config = self._config
        self._updates += 1 if is_bad is None else ~is_bad
        first, second = self._moments.values()
        decayed = sum(g.where.stop - g.where.start for g in self._groups if g.weight_decay)
        adamw_(
            *(self.values, self._copies, self.gradients, first, second, decayed),
            *(self._updates, norm, learning_rate, self._scales),
            beta1=config.beta1,
            beta2=config.beta2,
            epsilon=config.epsilon,
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            skips=is_bad is not None,
        )
        self._muon_at_once(norm, learning_rate, skips=is_bad is not None)

    def _muon_at_once(self, norm: Tensor, learning_rate: Tensor, skips: bool) -> None:
        """As `_muon_by_torch`, of gradients that are not clipped yet."""
        config, first = self._config, self._moments["first"]
        for where, weight_decay, scale, muon in self._groups:
            if muon is None:
                continue
            change = momenta(
                *(self.gradients[where], first[where], norm, precision_of_directions(norm.device)),
                beta1=config.beta1,
                clip_norm=config.clip_norm,
            )
            muon.direct(change)
            follow_(
                *(self.values[where], self._copies[where], change, norm, learning_rate),
                scale=scale,
                weight_decay=weight_decay,
                skips=skips,
            )

    def _update_by_torch(self, norm: Tensor, learning_rate: float | Tensor, is_bad: Tensor | None) -> None:
        config = self._config
        if config.clip_norm:
            self.gradients.mul_(self._clipping(norm))
        for group, count in zip(self._groups, self._updates.unbind(), strict=True):
            adamw(
                [self.values[group.where]],
                [self.gradients[group.where]],
                [self._moments["first"][group.where]],
                [self._moments["second"][group.where]],
                [],
                [count],
                fused=True,
                found_inf=None if is_bad is None else is_bad.float(),
                amsgrad=False,
                maximize=False,
                beta1=config.beta1,
                beta2=config.beta2,
                eps=config.epsilon,
                lr=learning_rate * group.adam_scale,
                weight_decay=group.weight_decay,
            )
        self._muon_by_torch(learning_rate, is_bad)
        if self._copies is not self.values:
            self._copies.copy_(self.values)

    def _clipping(self, norm: Tensor) -> Tensor:
        """What gradients of that norm are multiplied by."""
        return self._config.clip_norm / norm.clamp(min=self._config.clip_norm)

    def _muon_by_torch(self, learning_rate: float | Tensor, is_bad: Tensor | None) -> None:
        """After AdamW, of whose first moment it makes use."""
        for where, weight_decay, scale, muon in self._groups:
            if muon is None:
                continue
            change = torch.lerp(self.gradients[where], self._moments["first"][where], self._config.beta1)
            change = change.to(precision_of_directions(change.device))
            muon.direct(change)
            change = change.float().add_(self.values[where], alpha=weight_decay).mul_(learning_rate * scale)
            self.values[where] -= change if is_bad is None else change.masked_fill_(is_bad, 0.0)

    @torch.no_grad()
    def put(self, values: Tensor) -> None:
        """Have the parameters be what a copy of `values` kept."""
        self.values.copy_(values)
        if self._copies is not self.values:
            self._copies.copy_(values)

    def weights(self) -> dict[str, Tensor]:
        """The parameters in float32, by name."""
        return self._by_name(self.values)

    def state(self) -> dict[str, Tensor]:
        """The moments by the parameters' names."""
        return self._named_moments(self._moments)

    def snapshot(self) -> Snapshot:
        """All of it as it is now, on the host, whatever the next update does."""
        values, first, second = on_host(self.values, *self._moments.values())
        return Snapshot(self._by_name(values), self._named_moments({"first": first, "second": second}), self.updates())

    def _named_moments(self, moments: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            f"{moment}.{name}": values
            for moment, flat in moments.items()
            for name, values in self._by_name(flat).items()
        }

    def updates(self) -> int:
        """How many were made, those that were skipped not counted; 0 where it does not matter."""
        return int(self._updates[0]) if self._config.bias_correction else 0

    def _by_name(self, flat: Tensor) -> dict[str, Tensor]:
        return {name: flat[where].view(shape) for name, (where, shape) in self._places.items()}

    def load(self, state: dict[str, Tensor], updates: int) -> None:
        """Go on from `state` after that many updates; the first rank's counts."""
        own = self.state()
        if self._world.is_first and set(own) != set(state):
            raise ValueError(f"the optimizer's state is of another model: {sorted(set(own) ^ set(state))[:4]}")
        for name, values in own.items() if self._world.is_first else ():
            values.copy_(state[name])
        self._world.spread(self._moments.values())
        self._set_updates(updates)

    def give_back(self, model: nn.Module) -> None:
        """Let the model have its parameters in full precision again, and be heard no more."""
        if self._reduction is not None:
            self._reduction.close()
        weights = self.weights()
        for name, parameter in model.named_parameters():
            parameter.grad = None
            parameter.data = weights[name].clone()


def is_decayed(name: str) -> bool:
    return not (name.endswith("bias") or "norm" in name)
