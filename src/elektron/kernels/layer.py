"""What a transformer layer is to the kernels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class LayerWeights(NamedTuple):
    """The parameters of a layer: a weight is [out, in], gains and shifts are the norms'."""

    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    out_bias: Tensor
    attention_gain: Tensor
    attention_shift: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    feedforward_gain: Tensor
    feedforward_shift: Tensor

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        return self.qkv, self.out, self.up, self.down


def unheard(parameter: Tensor) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True)
class Setting:
    """What all layers have in common."""

    heads: int
    epsilon: float
    rate: float
    attention_rate: float
    recompute: bool
    """Keep only the layers' inputs for the backward pass, unless they are narrow: these keep little."""
    told: Callable[[Tensor], object] = unheard
    """Called in the backward pass with each matrix whose gradient this pass adds nothing more to."""

    def tell(self, weights: LayerWeights) -> None:
        for matrix in weights.matrices:
            self.told(matrix)


def unbound(keys: Tensor | None) -> tuple[Tensor | None, ...]:
    """The keys of a layer's three sites, or none."""
    return (None, None, None) if keys is None else keys.unbind()
