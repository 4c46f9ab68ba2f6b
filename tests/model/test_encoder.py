from dataclasses import replace

import pytest
import torch
import transformers

from elektron.interop.huggingface import load_encoder
from elektron.kernels.counters import row_keys
from elektron.model.cost import encoder_flops
from elektron.model.encoder import Embeddings, Encoder, EncoderConfig
from elektron.model.heads import Generator
from elektron.model.initial import initialise

SHAPE = EncoderConfig(
    layers=2,
    width=32,
    heads=4,
    feedforward_width=64,
    embedding_width=16,
    positions=24,
    dropout=0.0,
    attention_dropout=0.0,
)


def make_encoder(shape: EncoderConfig) -> Encoder:
    encoder = Encoder(shape, Embeddings(100, shape))
    initialise(encoder, 0)
    return encoder


def rows(count: int = 3, length: int = 12):
    return torch.randint(100, (count, length)), (torch.arange(length) > 5).long().repeat(count, 1)


def test_padding_is_not_seen():
    encoder = make_encoder(SHAPE)
    tokens, segments = rows()
    mask = torch.ones_like(tokens)
    mask[:, 8:] = 0
    other = tokens.clone()
    other[:, 8:] = 7
    first, second = (encoder(t, segments, mask)[:, :8] for t in (tokens, other))
    assert torch.equal(first, second)
    short = encoder(tokens[:, :8], segments[:, :8])
    assert torch.allclose(first, short, atol=1e-6)


def test_states_are_those_of_transformers(untaught, small_tokenizer):
    """Of the embeddings and of every layer, padding included in the row but not seen; the last is what comes out."""
    theirs = transformers.ElectraModel.from_pretrained(untaught / "discriminator").eval()
    ours = load_encoder(untaught / "discriminator").eval()
    tokens = torch.randint(5, small_tokenizer.vocab_size, (3, 12))
    segments, mask = (torch.arange(12) > 5).long().repeat(3, 1), torch.ones_like(tokens)
    mask[:, 9:] = 0
    with torch.no_grad():
        expected = theirs(tokens, mask, segments, output_hidden_states=True).hidden_states
        found = ours.states(tokens, segments, mask)
        assert torch.equal(found[-1], ours(tokens, segments, mask))
    assert len(found) == len(expected) == 3
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one[:, :9], other[:, :9], atol=1e-4)


@pytest.mark.parametrize("with_mask", [False, True])
def test_attention_with_dropout_is_attention(with_mask):
    """At a rate too small to drop anything, the explicit form gives what torch's own attention gives."""
    tokens, segments = rows()
    mask = (torch.rand(tokens.shape) > 0.3).long() if with_mask else None
    if mask is not None:
        mask[:, 0] = 1
    keys = row_keys(0, 0, torch.arange(3, dtype=torch.int32))
    plain = make_encoder(SHAPE)(tokens, segments, mask)
    explicit = make_encoder(replace(SHAPE, attention_dropout=1e-9))(tokens, segments, mask, keys)
    assert torch.allclose(plain, explicit, atol=1e-5)


def test_dropout_needs_keys_and_depends_on_them():
    encoder = make_encoder(replace(SHAPE, dropout=0.2, attention_dropout=0.2))
    tokens, segments = rows()
    keys = row_keys(0, 0, torch.arange(3, dtype=torch.int32))
    assert torch.equal(encoder(tokens, segments), encoder(tokens, segments))
    assert torch.equal(encoder(tokens, segments, keys=keys), encoder(tokens, segments, keys=keys))
    assert not torch.allclose(encoder(tokens, segments, keys=keys), encoder(tokens, segments))
    alone = encoder(tokens[1:2], segments[1:2], keys=keys[1:2])
    assert torch.allclose(alone, encoder(tokens, segments, keys=keys)[1:2], atol=1e-6)


def test_every_dropout_site_has_its_own_bits():
    encoder = make_encoder(replace(SHAPE, layers=3, dropout=0.5))
    keys = row_keys(0, 0, torch.arange(3, dtype=torch.int32))
    *layers, embeddings = (noise for noise in encoder._noise(keys) if noise is not None)
    found = torch.cat([*layers, embeddings[None]])
    assert found.shape == (10, 3)
    assert len(found.unique()) == 30


def test_recomputing_changes_no_gradient():
    tokens, segments = rows()
    keys = row_keys(0, 0, torch.arange(3, dtype=torch.int32))
    gradients = []
    for recompute in (False, True):
        encoder = make_encoder(replace(SHAPE, dropout=0.1, attention_dropout=0.1))
        encoder.recompute = recompute
        encoder(tokens, segments, keys=keys).square().sum().backward()
        gradients.append([p.grad for p in encoder.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_no_projection_where_the_widths_are_equal():
    names = dict(make_encoder(replace(SHAPE, embedding_width=32)).named_parameters())
    assert not any("project" in name for name in names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "3 attention heads do not divide a width of 32"),
        ({"layers": 0}, "at least 1"),
        ({"dropout": 1.0}, r"lie in \[0, 1\), unlike 1.0"),
    ],
)
def test_impossible_shapes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(SHAPE, **change)


def test_rows_longer_than_the_positions_are_refused():
    with pytest.raises(ValueError, match="rows of 25 tokens are longer than the model's 24 positions"):
        make_encoder(SHAPE)(*rows(1, 25))


def test_a_generator_s_vocabulary_is_its_embeddings():
    embeddings = Embeddings(100, SHAPE)
    generator = Generator(SHAPE, embeddings)
    tokens, segments = rows()
    assert generator(tokens, segments).shape == (3, 12, 100)
    assert generator.table is embeddings.word.weight


def test_flops_are_counted_like_the_profiler_does():
    """torch's own counter of matrix products, on a forward pass of the encoder alone."""
    from torch.utils.flop_counter import FlopCounterMode

    encoder = make_encoder(replace(SHAPE, attention_dropout=1e-9))  # it does not know the fused attention of a CPU
    tokens, segments = rows(4, 16)
    with FlopCounterMode(display=False) as counter:
        encoder(tokens, segments, keys=row_keys(0, 0, torch.arange(4, dtype=torch.int32)))
    assert counter.get_total_flops() == pytest.approx(encoder_flops(SHAPE, 16) * 64)
