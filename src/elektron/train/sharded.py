"""Parameters cut among ranks, for models that do not fit one: torch's fully_shard, and torch's AdamW.

Each layer is gathered when it is computed and given up afterwards; all else (embeddings, heads) is the root's, which is
gathered once for a step. So no kernels of ours, no flat buffer, no recorded graph. What is learned is the same but for
rounding, and checkpoints have the same form.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import get_total_norm

from elektron.model.encoder import Layer
from elektron.train.distributed import World
from elektron.train.optimizer import NOTES, SETTLED, OptimizerConfig, Snapshot, Updated, is_decayed

_MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}


def shard(model: nn.Module, world: World, ranks: int, dtype: torch.dtype) -> None:
    """Cut the parameters among every `ranks` ranks, to compute in `dtype`; gradients are summed in float32."""
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    mesh = _mesh(next(model.parameters()).device.type, world.size, ranks)
    for module in [*(m for m in model.modules() if isinstance(m, Layer)), model]:
        fully_shard(module, mesh=mesh, mp_policy=policy)


def _mesh(device: str, size: int, ranks: int) -> DeviceMesh:
    if size % ranks:
        raise ValueError(f"--train.shard {ranks} does not divide the {size} ranks there are")
    if ranks == size:
        return init_device_mesh(device, (size,))
    return init_device_mesh(device, (size // ranks, ranks), mesh_dim_names=("replicas", "shards"))


class ShardedOptimizer:
    """`Optimizer`, of a model whose parameters are cut among ranks."""

    is_recordable = False

    def __init__(self, model: nn.Module, config: OptimizerConfig, scale: Callable[[str], float], world: World) -> None:
        if config.kind == "muon":
            raise ValueError(
                "--optimizer.kind muon needs whole matrices, which --train.shard cuts: leave --train.shard at 1"
            )
        assert isinstance(model, FSDPModule), "see `shard`"
        self._model, self._config, self._world = model, config, world
        self._named = dict(model.named_parameters())
        kinds = {name: (is_decayed(name), scale(name)) for name in self._named}
        self._learning = [name for name, (_, factor) in kinds.items() if factor]
        groups = [
            {
                "params": [self._named[name] for name in self._learning if kinds[name] == kind],
                "weight_decay": config.weight_decay if kind[0] else 0.0,
                "scale": kind[1],
            }
            for kind in sorted({kinds[name] for name in self._learning})
        ]
        self._adam = torch.optim.AdamW(groups, betas=(config.beta1, config.beta2), eps=config.epsilon, foreach=True)
        self._updates = 0
        for name in self._learning:
            parameter = self._named[name]
            self._set(parameter, {key: torch.zeros_like(parameter) for key in _MOMENTS.values()})
        self.notes = torch.zeros(NOTES, device=next(model.parameters()).device)

    def _set(self, parameter: Tensor, moments: dict[str, Tensor]) -> None:
        updates = float(self._updates) if self._config.bias_correction else SETTLED
        self._adam.state[parameter] = {"step": torch.tensor(updates), **moments}

    def zero(self) -> None:
        self._adam.zero_grad()
        for parameter in self._named.values():
            parameter.grad = None

    def backward(self, loss: Tensor, is_last: bool) -> None:
        """Add a loss's gradients to what is there; with the `is_last` one they are summed over ranks."""
        assert isinstance(self._model, FSDPModule)
        self._model.set_requires_gradient_sync(is_last)
        (loss * self._world.size).backward()  # ranks' gradients are averaged there, and summed here

    def gather(self) -> None:
        """Go on with the notes of all ranks; gradients are summed already."""
        dist.all_reduce(self.notes)

    @torch.no_grad()
    def update(self, learning_rate: float | Tensor) -> Updated:
        """Clip and step."""
        gradients = [g for name in self._learning if (g := self._named[name].grad) is not None]
        norm = _whole(get_total_norm(gradients))
        is_bad = ~norm.isfinite() if self._config.not_finite == "skip" else None
        if is_bad is None or not is_bad:
            if limit := self._config.clip_norm:
                torch._foreach_mul_(gradients, limit / norm.clamp(min=limit))  # pyright: ignore[reportPrivateImportUsage]
            for group in self._adam.param_groups:
                group["lr"] = float(learning_rate) * group["scale"]
            self._adam.step()
            self._updates += 1
        return Updated(norm, is_bad)

    def snapshot(self) -> Snapshot:
        """All of it, gathered to every rank's host: a call that all ranks make."""
        weights = {name: _whole(parameter.detach()).cpu() for name, parameter in self._named.items()}
        state = {
            f"{moment}.{name}": self._moment(name, key) for moment, key in _MOMENTS.items() for name in self._named
        }
        return Snapshot(weights, state, self._updates)

    def _moment(self, name: str, key: str) -> Tensor:
        parameter = self._named[name]
        if name not in self._learning:
            return torch.zeros(parameter.shape)
        return _whole(self._adam.state[parameter][key]).cpu()

    def load(self, state: dict[str, Tensor], updates: int) -> None:
        """Go on from `state`, the first rank's, after that many updates."""
        self._updates = updates
        for name in self._learning:
            parameter = self._named[name]
            moments = {key: self._cut(state.get(f"{moment}.{name}"), parameter) for moment, key in _MOMENTS.items()}
            self._set(parameter, moments)

    def _cut(self, whole: Tensor | None, like: Tensor) -> Tensor:
        """This rank's part of what the first rank holds."""
        assert isinstance(like, DTensor)
        given = torch.zeros(like.shape, device=like.device) if whole is None else whole.to(like.device)
        return distribute_tensor(given, like.device_mesh, like.placements)

    def give_back(self, model: nn.Module) -> None:
        """Let go of the gradients."""
        self.zero()


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
