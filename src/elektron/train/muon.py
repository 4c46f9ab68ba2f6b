"""Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon): where AdamW makes the entries of an update
equal in size, Muon does so with the singular values of a matrix's momentum.

    momentum  = b1 * first + (1 - b1) * g                    Nesterov's; `first` and g as AdamW has them
    direction = U V^T, nearly                                where momentum = U S V^T
    value    -= rate * scale * (0.2 sqrt(max(rows, columns)) * direction + decay * value)

It is for the matrices inside of layers. Those of one shape, upright or lying, are orthogonalised together: few launches
for many layers, and nothing waits for the host, so that a graph can replay it.

Shapes in comments: N matrices, R rows, C columns.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elektron.model.encoder import Layer

_STEPS = 5
_COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of x, x^3 and x^5: the smallest singular values grow fastest, at the price that none comes to rest at 1."""
_TINY = 1e-7
"""Added to norms: the direction of zeros is zeros."""
_LIKE_ADAM = 0.2
"""What the entries of AdamW's updates are in the mean square, so that its learning rate and decay serve for both (Liu
et al., 2025, arXiv 2502.16982)."""


def orthogonalised(matrices: Tensor, size: float = 1.0) -> Tensor:
    """The nearest matrices with singular values of about `size`, by Newton and Schulz's iteration in the precision of
    `matrices`. [N, R, C] -> [N, R, C]"""
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonalised(matrices.mT, size).mT
    precise = torch.promote_types(matrices.dtype, torch.float32)
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True, dtype=precise)
    x = matrices / (norms + _TINY).to(matrices.dtype)
    a, b, c = _COEFFICIENTS
    for step in range(_STEPS):
        share = size if step == _STEPS - 1 else 1.0
        gram = torch.bmm(x, x.mT)  # [N, R, R]
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=share * a, alpha=share)
    return x


def precision_of_directions(device: torch.device) -> torch.dtype:
    """What their products are fast in, and precise enough."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def matrices_of_layers(model: nn.Module) -> dict[str, int]:
    """The names of the weights that are Muon's, and how many matrices lie in each, one below the other."""
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    counts = {id(w): 3 if w is layer.qkv.weight else 1 for layer in layers for w in layer.weights.matrices}
    return {name: counts[id(p)] for name, p in model.named_parameters() if id(p) in counts}


class _Alike(NamedTuple):
    """Places of matrices in a flat buffer: `wide` of [R, C], `tall` of [C, R], R at most C."""

    rows: int
    columns: int
    wide: list[slice]
    tall: list[slice]

    def gathered(self, flat: Tensor) -> Tensor:
        """[N, R, C]; both kinds are copied as they lie, a launch each, and turned together."""
        kinds = (self.wide, (self.rows, self.columns)), (self.tall, (self.columns, self.rows))
        there = [torch.stack([flat[place].view(shape) for place in places]) for places, shape in kinds if places]
        if self.tall:
            there[-1] = there[-1].mT
        return torch.cat(there)

    def put(self, flat: Tensor, matrices: Tensor) -> None:
        """Where they were `gathered` from."""
        wide, tall = matrices.split([len(self.wide), len(self.tall)])
        parts = [*wide.flatten(1), *tall.mT.flatten(1)]
        torch._foreach_copy_([flat[where] for where in (*self.wide, *self.tall)], parts)  # pyright: ignore[reportPrivateImportUsage]


class Muon:
    """Of the matrices in a stretch of a flat buffer."""

    def __init__(self, places: dict[str, tuple[slice, torch.Size]], counts: dict[str, int], start: int) -> None:
        """Of the weights that have `counts` (see `matrices_of_layers`), of all that have places in the buffer; the
        stretch begins at `start`."""
        self._kinds: dict[tuple[int, int], _Alike] = {}
        for name, count in counts.items():
            where, (height, columns) = places[name]
            rows, size = height // count, height // count * columns
            shape = min(rows, columns), max(rows, columns)
            alike = self._kinds.setdefault(shape, _Alike(*shape, [], []))
            starts = range(where.start - start, where.stop - start, size)
            (alike.wide if rows <= columns else alike.tall).extend(slice(first, first + size) for first in starts)

    def direct(self, momenta: Tensor) -> None:
        """Make the stretch of momenta one of directions, with entries as large as those of AdamW's updates."""
        for alike in self._kinds.values():
            alike.put(momenta, orthogonalised(alike.gathered(momenta), _LIKE_ADAM * alike.columns**0.5))
