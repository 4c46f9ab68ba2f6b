"""The ELECTRA encoder (Clark et al., 2020, arXiv 2003.10555): BERT's post-norm transformer over embeddings that may be
narrower than the layers.

Shapes in comments: B rows, T tokens of a row, E embedding width, D width, H heads, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from elektron.kernels.attention import attention
from elektron.kernels.counters import dropout, fold
from elektron.kernels.embedding import embed, plainly_embedded
from elektron.kernels.layer import LayerWeights, Setting, unheard
from elektron.kernels.layers import fits, run_layers
from elektron.kernels.products import linear

NORM_EPSILON = 1e-12
SEGMENTS = 2
_SITES_A_LAYER = 3
"""Places of dropout: attention probabilities, attention, feed-forward."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The shape of the discriminator's encoder."""

    layers: int = 12
    """Transformer layers."""
    width: int = 256
    """Hidden size of the layers."""
    heads: int = 4
    """Attention heads; they divide the width."""
    feedforward_width: int = 1024
    """Inner width of the feed-forward part."""
    embedding_width: int = 128
    """Width of the embeddings, which generator and discriminator share; projected where it is not the width."""
    positions: int = 512
    """Longest row the model can read."""
    dropout: float = 0.1
    """Dropout of embeddings and sub-layers."""
    attention_dropout: float = 0.1
    """Dropout of attention probabilities."""

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "feedforward_width", "embedding_width", "positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"an encoder's {name} must be at least 1, not {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"{self.heads} attention heads do not divide a width of {self.width}: change one of them")
        if not (0 <= self.dropout < 1 and 0 <= self.attention_dropout < 1):
            raise ValueError(
                f"dropout and attention_dropout lie in [0, 1), unlike {self.dropout} and {self.attention_dropout}"
            )


class Norm(nn.LayerNorm):
    """Layer norm in the precision of its own weights, whatever it is around it."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.to(self.weight.dtype)).to(input.dtype)


class Embeddings(nn.Module):
    """Word, position and segment tables and their norm: what the two networks share.

    They may share the words alone, or one may have them as another's that stand still for it, and differences of its
    own (gradient-disentangled embedding sharing: He et al., 2021, arXiv 2111.09543)."""

    def __init__(
        self,
        vocab_size: int,
        config: EncoderConfig,
        word: nn.Embedding | None = None,
        beneath: nn.Embedding | None = None,
    ) -> None:
        """`word` is a table to share; `beneath` one to add differences to."""
        super().__init__()
        self.word = nn.Embedding(vocab_size, config.embedding_width) if word is None else word
        self.beneath = beneath
        self.position = nn.Embedding(config.positions, config.embedding_width)
        self.segment = nn.Embedding(SEGMENTS, config.embedding_width)
        self.norm = Norm(config.embedding_width, NORM_EPSILON)

    @property
    def table(self) -> Tensor:
        """[V, E] the vectors of words."""
        return self.word.weight if self.beneath is None else self.beneath.weight.detach() + self.word.weight

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor,
        rate: float = 0.0,
        keys: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, E], with dropout of `rate` if there are `keys` [B]; at the positions `places` [B, T], or
        else at the first T. Tokens may also be mixtures of words, [B, T, E]."""
        length, longest = tokens.shape[1], self.position.num_embeddings
        if places is None and length > longest:
            raise ValueError(f"rows of {length} tokens are longer than the model's {longest} positions")
        position = self.position.weight if places is None else F.embedding(places, self.position.weight)
        norm = self.norm.weight, self.norm.bias, NORM_EPSILON, rate, keys
        given = tokens, segments, self.table, position, self.segment.weight
        is_plain = tokens.ndim == 3 or position.ndim == 3 or self.beneath is not None
        return plainly_embedded(*given, *norm) if is_plain else embed(*given, *norm)


class Layer(nn.Module):
    """Attention and feed-forward, each added to its input and normed."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.attention_norm = Norm(config.width, NORM_EPSILON)
        self.up = nn.Linear(config.width, config.feedforward_width)
        self.down = nn.Linear(config.feedforward_width, config.width)
        self.feedforward_norm = Norm(config.width, NORM_EPSILON)

    def forward(self, x: Tensor, mask: Tensor | None, noise: Tensor | None) -> Tensor:
        """[B, T, D] -> [B, T, D]; `noise` [3, B] are the keys of the layer's sites."""
        rate = self.config.dropout
        of_probabilities, of_attention, of_feedforward = (None, None, None) if noise is None else noise.unbind()
        mixed = attention(self.qkv(x), self.config.heads, mask, self.config.attention_dropout, of_probabilities)
        x = self.attention_norm(x + dropout(self.out(mixed), rate, of_attention))
        fed = self.down(F.gelu(self.up(x)))
        return self.feedforward_norm(x + dropout(fed, rate, of_feedforward))

    @property
    def weights(self) -> LayerWeights:
        """What the kernels take."""
        parts = self.qkv, self.out, self.attention_norm, self.up, self.down, self.feedforward_norm
        return LayerWeights(*(tensor for part in parts for tensor in (part.weight, part.bias)))


class Encoder(nn.Module):
    """Embeddings and layers."""

    def __init__(self, config: EncoderConfig, embeddings: Embeddings) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        """Keep only the layers' inputs for the backward pass and compute the rest again."""
        self.told: Callable[[Tensor], object] = unheard
        """Who hears from the kernels that the gradient of a layer's matrix is there."""
        self.embeddings = embeddings
        narrow = config.embedding_width != config.width
        self.project = nn.Linear(config.embedding_width, config.width) if narrow else nn.Identity()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))

    def forward(
        self,
        tokens: Tensor,
        segments: Tensor,
        attention_mask: Tensor | None = None,
        keys: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """[B, T] tokens -> [B, T, D]. `attention_mask` is 1 where a token is to be seen, [B, T] or by each its own
        [B, T, T], None when all are; `keys` [B] are the rows' noise, None when nothing is to be dropped; `places`
        [B, T] are the tokens' positions, where these are not 0, 1, 2, ..."""
        mask = None if attention_mask is None else attention_mask.bool()
        noise = self._noise(keys)
        return self._layers(self._embedded(tokens, segments, noise[-1], places), mask, noise[:-1])

    def states(self, tokens: Tensor, segments: Tensor, attention_mask: Tensor | None = None) -> list[Tensor]:
        """[B, T, D] of the embeddings, as the first layer reads them, and of each layer. Nothing is dropped."""
        mask = None if attention_mask is None else attention_mask.bool()
        found = [self._embedded(tokens, segments)]
        for layer in self.layers:
            found.append(layer(found[-1], mask, None))
        return found

    def _embedded(
        self, tokens: Tensor, segments: Tensor, noise: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        x = self.embeddings(tokens, segments, self.config.dropout, noise, places)
        return linear(x, self.project.weight, self.project.bias) if isinstance(self.project, nn.Linear) else x

    def _layers(self, x: Tensor, mask: Tensor | None, noise: list[Tensor | None]) -> Tensor:
        config = self.config
        setting = Setting(
            config.heads, NORM_EPSILON, config.dropout, config.attention_dropout, self.recompute, self.told
        )
        weights = [layer.weights for layer in self.layers if isinstance(layer, Layer)]
        if fits(x, setting, weights[0].up):
            return run_layers(x, weights, mask, noise, setting)
        for layer, layer_noise in zip(self.layers, noise, strict=True):
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(layer, x, mask, layer_noise, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, mask, layer_noise)
        return x

    def _noise(self, keys: Tensor | None) -> list[Tensor | None]:
        """A key for each row and site of dropout: [3, B] for each layer, then [B] for the embeddings."""
        if keys is None or not (self.config.dropout or self.config.attention_dropout):
            return [None] * (self.config.layers + 1)
        sites = torch.arange(_SITES_A_LAYER * self.config.layers + 1, dtype=torch.int32, device=keys.device)
        *layers, embeddings = fold(keys, sites[:, None]).split(_SITES_A_LAYER)
        return [*layers, embeddings[0]]


def with_dropout(encoder: Encoder, rate: float | None) -> Encoder:
    """A copy of the encoder that drops so much, everywhere; or as much as it did, if None."""
    shape = encoder.config if rate is None else replace(encoder.config, dropout=rate, attention_dropout=rate)
    copy = Encoder(shape, Embeddings(encoder.embeddings.word.num_embeddings, shape))
    copy.load_state_dict(encoder.state_dict())
    return copy
