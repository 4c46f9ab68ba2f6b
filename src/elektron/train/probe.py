"""A linear probe: how much of what a task asks of words can be read off a frozen encoder's states by one matrix.

States of the last layer are centred and scaled; a softmax regression with a little weight decay is fitted to its
optimum by L-BFGS, so a probe has no learning rate, no epochs and no seed of its own.

Shapes in comments: N tokens with a class, D width, C classes, T tokens of a row.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.data.examples import IGNORED, Examples, in_order
from elektron.model.encoder import Encoder

DECAY = 1e-3
"""Of the regression's weights: half of it times their squares is added to the mean loss."""
_TURNS = 200
_TOKENS_AT_ONCE = 1 << 15


class _Read(NamedTuple):
    """What an encoder makes of a row."""

    row: int
    states: Tensor  # [T, D]
    classes: Tensor  # [T]


def probe(encoder: Encoder, train: Examples, asked: Examples, classes: int) -> list[np.ndarray]:
    """Scores [T, C] of each row that is `asked`, from a regression on the tokens of `train` that have a class."""
    read = _read(encoder, train)
    known = torch.cat([one.states[one.classes != IGNORED] for one in read])  # [N, D]
    targets = torch.cat([one.classes[one.classes != IGNORED] for one in read])  # [N]
    mean, scale = known.mean(0), known.std(0) + 1e-6
    weights, bias = fitted((known - mean) / scale, targets, classes)
    found: list[np.ndarray] = [np.empty(0)] * len(asked)
    for one in _read(encoder, asked):
        found[one.row] = F.linear((one.states - mean) / scale, weights, bias).cpu().numpy()
    return found


def fitted(states: Tensor, targets: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The weights [C, D] and biases [C] of the best softmax regression."""
    weights = torch.zeros(classes, states.shape[1], device=states.device, requires_grad=True)
    bias = torch.zeros(classes, device=states.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=_TURNS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = F.cross_entropy(F.linear(states, weights, bias), targets) + DECAY / 2 * weights.square().sum()
        found.backward()
        return found

    optimizer.step(loss)
    return weights.detach(), bias.detach()


@torch.no_grad()
def _read(encoder: Encoder, examples: Examples) -> list[_Read]:
    encoder.eval()
    device, found = next(encoder.parameters()).device, []
    for rows in in_order(examples.lengths, _TOKENS_AT_ONCE):
        inputs = examples.inputs(torch.from_numpy(rows).to(device), int(examples.lengths[rows].max()))
        states = encoder(inputs.tokens, inputs.segments, inputs.mask).float()
        for row, of_row, classes in zip(rows.tolist(), states, inputs.targets, strict=True):
            found.append(_Read(row, of_row[: examples.lengths[row]], classes[: examples.lengths[row]]))
    return found
