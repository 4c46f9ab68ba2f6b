"""Masked language modelling (Devlin et al., 2019, arXiv 1810.04805): the baseline that ELECTRA is measured against.

Some tokens of a row are masked, others each time the row is read; one full-size encoder names them. No next-sentence
prediction.

    loss = mean over masked tokens of  -log p(original | masked)

Shapes in comments: B rows, T tokens of a row, K masked positions of a row.
"""

import torch
from torch import Tensor

from elektron.kernels.counters import elements
from elektron.kernels.masking import masked_count, picked
from elektron.kernels.vocabulary import Spoken
from elektron.model.cost import PASSES, encoder_flops
from elektron.model.encoder import Embeddings, EncoderConfig
from elektron.model.heads import Discriminator, Generator
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Objective, ObjectiveConfig, Outcome, noise_of
from elektron.objectives.proposing import hide, named, naming_flops

NAMED = ("named", "encoder_loss", "encoder_hits")


class MaskedLM(Objective):
    """One network, which names what is hidden."""

    tallies = NAMED

    def __init__(self, shape: EncoderConfig, config: ObjectiveConfig, lexicon: Lexicon) -> None:
        super().__init__()
        self.config, self.lexicon = config, lexicon
        self.network = Generator(shape, Embeddings(lexicon.size, shape))

    def forward(self, original: Tensor, segments: Tensor, keys: Tensor, progress: Tensor | float = 1.0) -> Outcome:
        noise = noise_of(keys, self.training)
        positions, targets, masked = hide(self.config, self.lexicon, original, noise)
        hidden = self.network.encoder(masked, segments, keys=noise.encoder)
        keys = elements(noise.samples, positions.shape[1])
        said = named(self.network, picked(hidden, positions), targets, self.config, keys)
        loss = said.losses.sum()
        return Outcome(loss / targets.numel(), named_tallies(loss, said))

    def summary(self, tallies: dict[str, float]) -> dict[str, float]:
        found = encoder_metrics(tallies)
        return {"loss": found["encoder_loss"], **found}

    def flops_per_token(self, length: int) -> float:
        shape, masked = self.network.encoder.config, masked_count(length, self.config.mask_rate) / length
        return PASSES * (encoder_flops(shape, length) + masked * naming_flops(shape, self.lexicon.size))

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"encoder": self.network}


@torch.no_grad()
def named_tallies(loss: Tensor, said: Spoken) -> Tensor:
    size = torch.full((1,), said.losses.numel(), dtype=torch.float64, device=loss.device)
    return torch.cat([size, loss.double()[None], said.hits.sum().double()[None]])


def encoder_metrics(tallies: dict[str, float]) -> dict[str, float]:
    named = tallies["named"]
    return {"encoder_loss": tallies["encoder_loss"] / named, "encoder_accuracy": tallies["encoder_hits"] / named}
