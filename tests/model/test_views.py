"""What an encoder reads beside rows of tokens from left to right: views of their own, other places, mixtures."""

import torch

from elektron.model.encoder import Embeddings, Encoder, EncoderConfig
from elektron.model.initial import initialise

SHAPE = EncoderConfig(layers=2, width=16, heads=2, feedforward_width=32, embedding_width=8, positions=12)


def make_encoder() -> Encoder:
    encoder = Encoder(SHAPE, Embeddings(30, SHAPE))
    initialise(encoder, 3)
    return encoder.eval()


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randint(5, 30, (3, 9), generator=torch.Generator().manual_seed(1))
    return rows, (torch.arange(9) > 4).long().repeat(3, 1)


def test_a_view_for_all_is_the_same_for_each():
    rows, segments = tokens()
    seen = torch.rand(3, 9, generator=torch.Generator().manual_seed(2)) < 0.6
    seen[:, 0] = True
    encoder = make_encoder()
    expected = encoder(rows, segments, seen)
    assert torch.allclose(encoder(rows, segments, seen[:, None].expand(3, 9, 9)), expected, atol=1e-6)


def test_from_left_to_right_nothing_is_heard_of_what_follows():
    rows, segments = tokens()
    encoder = make_encoder()
    causal = torch.ones(1, 9, 9, dtype=torch.bool).tril()
    before = encoder(rows, segments, causal)
    rows[:, 5] += 1 - 2 * (rows[:, 5] == 29).long()
    after = encoder(rows, segments, causal)
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(-1).all()


def test_places_and_mixtures():
    rows, segments = tokens()
    encoder = make_encoder()
    expected = encoder(rows, segments)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3)).repeat(3, 1)
    shuffled = encoder(rows.gather(1, order), segments.gather(1, order), places=order)
    assert torch.allclose(shuffled, expected.gather(1, order[..., None].expand_as(expected)), atol=1e-6)
    vectors = encoder.embeddings.word(rows)
    assert torch.allclose(encoder(vectors, segments), expected, atol=1e-6)
