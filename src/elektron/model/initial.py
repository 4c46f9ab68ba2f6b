"""How networks begin.

The original's way is a small truncated normal everywhere. Its attention heads then look everywhere alike, and for
millions of tokens the networks know word frequencies and nothing else: they have to find out first that a word has
neighbours. The local way tells them. The position table begins as waves, and the queries and keys of half of the heads
begin by picking those waves out, the keys turned so that a head looks at one place to the left or right of its own. All
of it is learned on from there, in the same architecture. (In the spirit of mimetic initialisation: Trockman and Kolter,
2023, arXiv 2305.09828, which starts queries and keys from what trained networks look like.)
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from elektron.model.encoder import Embeddings, Encoder, Layer

Start = Literal["original", "local"]

DEVIATION = 0.02
WAVES = 16
WAVE_HEIGHT = 2.0
"""Height of the waves in the position table, in deviations of a word's embedding."""
SHARPNESS = 10.0
"""Logit of the place a head looks at, where the others are near zero."""


@torch.no_grad()
def initialise(network: nn.Module, seed: int, start: Start = "original") -> None:
    """Give every parameter its first value; encoders inside that share their embeddings begin together."""
    noise = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1.0)
        elif name.endswith("bias"):
            parameter.zero_()
        elif name.endswith(("project.weight", "score.weight")):
            nn.init.xavier_uniform_(parameter, generator=noise)
        else:
            nn.init.trunc_normal_(parameter, 0.0, DEVIATION, -2 * DEVIATION, 2 * DEVIATION, generator=noise)
    for module in network.modules():
        if isinstance(module, Embeddings) and module.beneath is not None:
            module.word.weight.zero_()  # differences to what lies beneath
    if start == "local":
        _look_around([module for module in network.modules() if isinstance(module, Encoder)], noise)


def _look_around(encoders: list[Encoder], noise: torch.Generator) -> None:
    """Positions as waves in the first columns of the table, and heads that follow them. The first position, which is
    [CLS]'s, has none: it looks everywhere alike. Nothing in pre-training would teach it to, and a task that is learned
    from it needs all of the row."""
    shapes = [encoder.config for encoder in encoders]
    narrowest = min(shape.width // shape.heads for shape in shapes)
    waves = min(WAVES, narrowest // 2, shapes[0].embedding_width // 4)
    if waves < 2:
        raise ValueError(f"heads {narrowest} wide are too narrow to begin with a look around: use --start original")
    frequencies = math.pi * (torch.arange(waves) + 0.5) / waves
    for embeddings in {encoder.embeddings for encoder in encoders}:
        table = embeddings.position.weight
        table.zero_()
        table[1:, : 2 * waves] = WAVE_HEIGHT * DEVIATION * _waves(frequencies, torch.arange(1, len(table)))
    for encoder in encoders:
        if isinstance(encoder.project, nn.Linear):
            _carry_through(encoder.project.weight, 2 * waves, noise)
        for number, layer in enumerate(encoder.layers):
            assert isinstance(layer, Layer)
            _follow(layer, frequencies, number)


def _waves(frequencies: Tensor, positions: Tensor) -> Tensor:
    """[positions, 2 * waves]: cosine and sine of each frequency in turn."""
    angles = positions[:, None] * frequencies
    return torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(1)


def _carry_through(projection: Tensor, columns: int, noise: torch.Generator) -> None:
    """A projection that leaves the first columns where they are and mixes the others without stretching them."""
    projection.zero_()
    projection[:columns, :columns] = torch.eye(columns)
    nn.init.orthogonal_(projection[columns:, columns:], generator=noise)


def _follow(layer: Layer, frequencies: Tensor, number: int) -> None:
    """Make head h of the first half, but of two at least, look h // 2 + 1 places to one side; neighbouring heads and
    layers look to opposite sides. The others are left free: heads that know places do not come to compare words, and
    [CLS] would have nobody to look through."""
    width, heads = layer.config.width, layer.config.heads
    share = len(frequencies) * WAVE_HEIGHT**2 / layer.config.embedding_width
    height = WAVE_HEIGHT / math.sqrt(1.0 + share)  # of a wave once the embeddings are normed
    scale = math.sqrt(SHARPNESS * math.sqrt(width // heads) / (len(frequencies) * height**2))
    queries, keys, _ = layer.qkv.weight.view(3, heads, width // heads, width)
    for head in range(min(heads, max(2, heads // 2))):
        offset = (head // 2 + 1) * (1 if (head + number) % 2 else -1)
        columns = 2 * len(frequencies)
        queries[head, :columns, :columns] += scale * torch.eye(columns)
        keys[head, :columns, :columns] += scale * _turn(frequencies * offset)


def _turn(angles: Tensor) -> Tensor:
    """A rotation of each pair of columns back by its angle: what stands `offset` places on then looks like here."""
    cosines, sines = angles.cos().tolist(), angles.sin().tolist()
    return torch.block_diag(*(torch.tensor([[c, s], [-s, c]]) for c, s in zip(cosines, sines, strict=True)))
