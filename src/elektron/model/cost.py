"""What an encoder costs, counted from its shape.

A product of [m, k] and [k, n] is 2mkn FLOPs; a training step is three forward passes, since the backward pass has two
products for each of the forward's. Element-wise work is not counted.
"""

from elektron.kernels import narrow
from elektron.model.encoder import EncoderConfig

PASSES = 3
"""Forward passes that a training step is worth."""


def encoder_flops(shape: EncoderConfig, length: int) -> float:
    """Forward FLOPs a token in rows of `length`, head and vocabulary apart."""
    project = 2 * shape.embedding_width * shape.width if shape.embedding_width != shape.width else 0
    products = 2 * (4 * shape.width**2 + 2 * shape.width * shape.feedforward_width)
    attention = 4 * length * shape.width
    return project + shape.layers * (products + attention)


def encoder_activations(shape: EncoderConfig, length: int, recompute: bool = False) -> float:
    """Bytes a token that an encoder in plain PyTorch and float32 keeps for its backward pass, roughly: of each layer
    its input, queries, keys and values, the attention's output, two sums and their norms, the feed-forward's inner
    values before and after GELU; where there is dropout, its input and mask at two places; where attention
    probabilities are dropped, these, their mask and what is left of them. If layers `recompute`, it is the input of
    each, and all this of one at a time."""
    values = 9 * shape.width + 2 * shape.feedforward_width
    dropout = 4 * shape.width if shape.dropout else 0
    probabilities = 3 * shape.heads * length if shape.attention_dropout else 0
    of_layer = values + dropout + probabilities
    return 4 * (shape.layers * shape.width + of_layer if recompute else shape.layers * of_layer)


def kernel_activations(shape: EncoderConfig, recompute: bool = False) -> float:
    """The same by kernels and in 16 bits: of each layer its input, queries, keys and values, the attention's output,
    two norms before gain and shift and one after, the feed-forward's inner values and GELU's slopes. Narrow layers that
    `recompute` keep queries, keys and values, which the layer below made."""
    of_layer = 8 * shape.width + 2 * shape.feedforward_width
    is_narrow = narrow.fits(shape.width, shape.feedforward_width)
    given = shape.width * (4 if is_narrow else 1)
    return 2 * (shape.layers * given + of_layer if recompute else shape.layers * of_layer)
