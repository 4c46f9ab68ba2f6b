"""Replace MLM, an ablation of ELECTRA's paper (Clark et al., 2020, arXiv 2003.10555, section 3.5): masked language
modelling whose input carries a generator's samples in place of [MASK], which is never seen in fine-tuning.

    loss = generator_weight * mean over masked tokens of  -log p_generator(original | masked)
         +                    mean over masked tokens of  -log p(original | corrupted)

Shapes in comments: B rows, T tokens of a row, K masked positions of a row.
"""

import torch
from torch import Tensor

from elektron.kernels.counters import elements
from elektron.kernels.masking import corrupt, masked_count, picked
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import EncoderConfig
from elektron.model.heads import Discriminator, Generator
from elektron.objectives import proposing
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.mlm import NAMED, encoder_metrics, named_tallies
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


class ReplaceMLM(Objective):
    """A small network that fills gaps, and a large one that names what was there."""

    tallies = (*proposing.TALLIES, *NAMED)

    def __init__(self, shape: EncoderConfig, config: ObjectiveConfig, lexicon: Lexicon) -> None:
        super().__init__()
        self.config, self.lexicon = config, lexicon
        large, small = shared_embeddings(shape, config, lexicon.size)
        self.network = Generator(shape, large)
        self.generator = make_proposer(shape, config, small, self.network.encoder)
        self.stages = stages_with(config, "network.")

    def forward(self, original: Tensor, segments: Tensor, keys: Tensor, progress: Tensor | float = 1.0) -> Outcome:
        config, noise = self.config, noise_of(keys, self.training)
        proposed = propose(self.generator, config, self.lexicon, original, segments, noise, progress)
        corrupted, _ = corrupt(original, proposed.positions, proposed.sampled)
        hidden = self.network.encoder(corrupted, segments, keys=noise.encoder)
        keys = elements(noise.samples, proposed.positions.shape[1])
        said = named(self.network, picked(hidden, proposed.positions), proposed.targets, config, keys)
        named_loss = said.losses.sum()
        loss = (config.generator_weight * proposed.loss + named_loss) / proposed.targets.numel()
        return Outcome(loss, torch.cat([proposed.tallies, named_tallies(named_loss, said)]))

    def summary(self, tallies: dict[str, float]) -> dict[str, float]:
        found = generator_metrics(tallies) | encoder_metrics(tallies)
        return {"loss": self.config.generator_weight * found["generator_loss"] + found["encoder_loss"], **found}

    def flops_per_token(self, length: int) -> float:
        shape, words = self.network.encoder.config, self.lexicon.size
        masked = masked_count(length, self.config.mask_rate) / length
        network = PASSES * (encoder_flops(shape, length) + masked * naming_flops(shape, words))
        return network + proposing_flops(self.generator, self.config, length, words)

    def networks(self) -> dict[str, Discriminator | Generator]:
        return with_generator("encoder", self.network, self.generator)
