"""All-tokens MLM, an ablation of ELECTRA's paper (Clark et al., 2020, arXiv 2003.10555, section 3.5): the encoder names
the original of every token of the corrupted text, and has a gate D that says how much it trusts its input.

    p(token) = D * [token is the input's] + (1 - D) * softmax(token)
    loss     = generator_weight * mean over masked tokens of  -log p_generator(original | masked)
             +                    mean over all tokens of     -log p(original)

Shapes in comments: B rows, T tokens of a row, K masked positions of a row.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from elektron.kernels.counters import elements
from elektron.kernels.masking import corrupt
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import EncoderConfig
from elektron.model.heads import CopyHead, Discriminator, Generator
from elektron.objectives import proposing
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.mlm import NAMED, encoder_metrics
from elektron.objectives.objective import Objective, ObjectiveConfig, Outcome, noise_of
from elektron.objectives.proposing import (
    generator_metrics,
    make_proposer,
    named,
    naming_flops,
    propose,
    proposing_flops,
    shared_embeddings,
    stages_with,
    with_generator,
)


class AllTokensMLM(Objective):
    """A small network that fills gaps, and a large one that says of every token what it was."""

    tallies = (*proposing.TALLIES, *NAMED, "replaced")

    def __init__(self, shape: EncoderConfig, config: ObjectiveConfig, lexicon: Lexicon) -> None:
        super().__init__()
        self.config, self.lexicon = config, lexicon
        large, small = shared_embeddings(shape, config, lexicon.size)
        self.network = Generator(shape, large)
        self.gate = CopyHead(shape.width)
        self.generator = make_proposer(shape, config, small, self.network.encoder)
        self.stages = stages_with(config, "network.", "gate.")

    def forward(self, original: Tensor, segments: Tensor, keys: Tensor, progress: Tensor | float = 1.0) -> Outcome:
        config, noise = self.config, noise_of(keys, self.training)
        proposed = propose(self.generator, config, self.lexicon, original, segments, noise, progress)
        corrupted, replaced = corrupt(original, proposed.positions, proposed.sampled)
        hidden = self.network.encoder(corrupted, segments, keys=noise.encoder)  # [B, T, D]
        trust = self.gate(hidden).float()  # [B, T] the logit of D
        said = named(self.network, hidden, original, config, elements(noise.samples, original.shape[1]))
        losses = copied_losses(trust, said.losses.view_as(original), replaced)
        loss = config.generator_weight * proposed.loss / proposed.targets.numel() + losses.mean()
        tallies = self._tallies(losses, said.hits.view_as(original), replaced)
        tallies = torch.cat([proposed.tallies, tallies])
        return Outcome(loss, tallies, -trust.detach(), replaced, corrupted, proposed.positions)

    @torch.no_grad()
    def _tallies(self, losses: Tensor, hits: Tensor, replaced: Tensor) -> Tensor:
        sizes = torch.full((1,), losses.numel(), dtype=torch.float64, device=losses.device)
        return torch.cat([sizes, torch.stack([losses.sum().double(), hits.sum().double(), replaced.sum().double()])])

    def summary(self, tallies: dict[str, float]) -> dict[str, float]:
        found = generator_metrics(tallies) | encoder_metrics(tallies)
        loss = self.config.generator_weight * found["generator_loss"] + found["encoder_loss"]
        return {"loss": loss, **found, "replaced_rate": tallies["replaced"] / tallies["named"]}

    def flops_per_token(self, length: int) -> float:
        shape, words = self.network.encoder.config, self.lexicon.size
        network = PASSES * (encoder_flops(shape, length) + naming_flops(shape, words) + 2 * shape.width)
        return network + proposing_flops(self.generator, self.config, length, words)

    def networks(self) -> dict[str, Discriminator | Generator]:
        return with_generator("encoder", self.network, self.generator)


def copied_losses(trust: Tensor, losses: Tensor, replaced: Tensor) -> Tensor:
    """-log p(original) with the gate, from its logits, from the losses without it, and from whether the input is
    another token: then copying it is no help."""
    doubted = F.logsigmoid(-trust) - losses  # log (1 - D) softmax(original)
    return -torch.where(replaced, doubted, torch.logaddexp(F.logsigmoid(trust), doubted))
