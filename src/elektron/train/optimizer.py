"""AdamW over one flat buffer: parameters, gradients and moments lie in one tensor each, so that clipping, the update
and, between ranks, the sum of gradients are single operations.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

_SETTLED = 1e9
"""A step count at which Adam's bias corrections are 1 to the last bit, and one more is the same in float32."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW; norms and biases are not decayed."""

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

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError(f"--optimizer.beta1 and beta2 lie in [0, 1): {self.beta1}, {self.beta2}")
        for name in ("epsilon", "weight_decay", "clip_norm"):
            if getattr(self, name) < 0:
                raise ValueError(f"--optimizer.{name.replace('_', '-')} must not be negative: {getattr(self, name)}")


class Optimizer:
    """Takes a model's parameters into its flat buffer and updates them there."""

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self._config = config
        named = sorted(model.named_parameters(), key=lambda item: not _is_decayed(item[0]))  # stable: decayed first
        self.values = torch.cat([parameter.detach().flatten() for _, parameter in named])
        self.gradients = torch.zeros_like(self.values)
        self._moments = {"first": torch.zeros_like(self.values), "second": torch.zeros_like(self.values)}
        self._places: dict[str, tuple[slice, torch.Size]] = {}
        start = 0
        for name, parameter in named:
            where = slice(start, start + parameter.numel())
            parameter.data = self.values[where].view_as(parameter)
            parameter.grad = self.gradients[where].view_as(parameter)
            self._places[name] = where, parameter.shape
            start = where.stop
        decayed = sum(parameter.numel() for name, parameter in named if _is_decayed(name))
        counts = torch.zeros(2, device=self.values.device)
        self._groups = (
            (slice(0, decayed), config.weight_decay, counts[0]),
            (slice(decayed, start), 0.0, counts[1]),
        )
        self._set_counts(0)

    def _set_counts(self, updates: int) -> None:
        for _, _, count in self._groups:
            count.fill_(updates if self._config.bias_correction else _SETTLED)

    def zero(self) -> None:
        self.gradients.zero_()

    def update(self, learning_rate: float | Tensor) -> Tensor:
        """Clip and step. The norm of the gradients before clipping comes back."""
        config = self._config
        norm = self.gradients.norm()
        if config.clip_norm:
            self.gradients.mul_(config.clip_norm / norm.clamp(min=config.clip_norm))
        for where, weight_decay, count in self._groups:
            adamw(
                [self.values[where]],
                [self.gradients[where]],
                [self._moments["first"][where]],
                [self._moments["second"][where]],
                [],
                [count],
                fused=True,
                amsgrad=False,
                maximize=False,
                beta1=config.beta1,
                beta2=config.beta2,
                eps=config.epsilon,
                lr=learning_rate,
                weight_decay=weight_decay,
            )
        return norm

    def state(self) -> dict[str, Tensor]:
        """The moments by the parameters' names."""
        return {
            f"{moment}.{name}": values[where].view(shape)
            for moment, values in self._moments.items()
            for name, (where, shape) in self._places.items()
        }

    def load(self, state: dict[str, Tensor], updates: int) -> None:
        """Go on from `state` after that many updates."""
        own = self.state()
        if set(own) != set(state):
            raise ValueError(f"the optimizer's state is of another model: {sorted(set(own) ^ set(state))[:4]}")
        for name, values in own.items():
            values.copy_(state[name])
        self._set_counts(updates)


def _is_decayed(name: str) -> bool:
    return not (name.endswith("bias") or "norm" in name)
