"""The adversarial loss, one masked token at a time."""

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.objectives.adversarial import Adversarial


def loss(
    model: Adversarial,
    original: Tensor,
    segments: Tensor,
    positions: list[list[int]],
    masked: Tensor,
    sampled: list[list[int]],
    corrupted: Tensor,
) -> tuple[Tensor, list[float]]:
    """What is differentiated, and the rewards."""
    chances = model.generator(masked, segments).log_softmax(-1)
    states = model.generator.encoder(masked, segments)
    replaced = (corrupted != original).double()
    errors = F.binary_cross_entropy_with_logits(
        model.discriminator(corrupted, segments).double(), replaced, reduction="none"
    )
    weight, bias = model.baseline.score.weight[0], model.baseline.score.bias[0]
    policy, surprise, rewards = [], [], []
    for row, of_row in enumerate(positions):
        for position, token in zip(of_row, sampled[row], strict=True):
            reward = errors[row, position].item()
            baseline = torch.dot(weight, states[row, position].detach()) + bias
            policy.append(-(reward - baseline.item()) * chances[row, position, token])
            surprise.append((baseline - reward) ** 2)
            rewards.append(reward)
    generator, baseline = sum(policy) / len(policy), sum(surprise) / len(surprise)
    config = model.config
    return config.generator_weight * generator + baseline + config.discriminator_weight * errors.mean(), rewards
