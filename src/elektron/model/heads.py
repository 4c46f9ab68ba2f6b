"""The two networks: an encoder with a head that names tokens, and one with a head that judges them.

Shapes in comments: B rows, T tokens of a row, N gathered tokens, E embedding width, D width, V vocabulary.
"""

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elektron.kernels.judging import Judged, judge
from elektron.kernels.products import gelu_linear
from elektron.model.encoder import NORM_EPSILON, Embeddings, Encoder, EncoderConfig, Norm


class GeneratorHead(nn.Module):
    """Hidden states to features that the embedding table itself turns into scores of the vocabulary."""

    def __init__(self, width: int, embeddings: Embeddings) -> None:
        super().__init__()
        vocab_size, embedding_width = embeddings.word.weight.shape
        self.dense = nn.Linear(width, embedding_width)
        self.norm = Norm(embedding_width, NORM_EPSILON)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(gelu_linear(hidden, self.dense.weight, self.dense.bias))  # [..., D] -> [..., E]


class Generator(nn.Module):
    """Proposes tokens: a masked language model."""

    def __init__(self, config: EncoderConfig, embeddings: Embeddings, encoder: Encoder | None = None) -> None:
        """With an encoder of its own, or on top of another network's."""
        super().__init__()
        self.encoder = Encoder(config, embeddings) if encoder is None else encoder
        self.head = GeneratorHead(config.width, embeddings)

    @property
    def table(self) -> Tensor:
        """[V, E] what features are compared with: the embeddings of the vocabulary."""
        return self.encoder.embeddings.table

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Scores of the vocabulary at every token: [B, T, V]."""
        features = self.head(self.encoder(input_ids, token_type_ids, attention_mask))
        return F.linear(features, self.table, self.head.bias)


class DiscriminatorHead(nn.Module):
    """Hidden states to one score each: positive where the token looks replaced."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.score(self._features(hidden)).squeeze(-1)  # [..., D] -> [...]

    def scores(self, hidden: Tensor) -> Tensor:
        """The same in float32, whatever the network computes in: for losses that add to a score."""
        features, parameters = self._features(hidden), (self.score.weight, self.score.bias)
        dtype = torch.promote_types(features.dtype, torch.float32)
        return F.linear(features.to(dtype), *(parameter.to(dtype) for parameter in parameters)).squeeze(-1)

    def judge(self, hidden: Tensor, replaced: Tensor) -> Judged:
        """Scores, and how they agree with `replaced`: [..., D], [...]."""
        return judge(self._features(hidden), self.score.weight, self.score.bias, replaced)

    def _features(self, hidden: Tensor) -> Tensor:
        return gelu_linear(hidden, self.dense.weight, self.dense.bias)


class CopyHead(nn.Module):
    """Hidden states to one score each: positive where the token looks as if it were the original."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.score(hidden).squeeze(-1)  # [..., D] -> [...]


class Discriminator(nn.Module):
    """Judges tokens: original or replaced."""

    def __init__(self, config: EncoderConfig, embeddings: Embeddings) -> None:
        super().__init__()
        self.encoder = Encoder(config, embeddings)
        self.head = DiscriminatorHead(config.width)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The logit of "replaced" at every token: [B, T]."""
        return self.head(self.encoder(input_ids, token_type_ids, attention_mask))


Network = TypeVar("Network", Discriminator, Generator)


def merged(network: Network) -> Network:
    """The network with one table of words, where it had another's and differences to it; or else itself."""
    embeddings, shape = network.encoder.embeddings, network.encoder.config
    if embeddings.beneath is None:
        return network
    size = embeddings.word.num_embeddings
    plain = type(network)(shape, Embeddings(size, shape)).to(embeddings.word.weight.device)
    state = {name: tensor for name, tensor in network.state_dict().items() if ".beneath." not in name}
    plain.load_state_dict(state | {"encoder.embeddings.word.weight": embeddings.table.detach()})
    return plain.train(network.training)
