from dataclasses import replace

import pytest
import torch

from elektron.kernels.counters import row_keys
from elektron.model.encoder import Embeddings, EncoderConfig
from elektron.model.initial import initialise
from elektron.model.two_tower import TwoTower

SHAPE = EncoderConfig(layers=2, width=16, heads=2, feedforward_width=32, embedding_width=8, positions=12)
ROWS, LENGTH, VOCABULARY = 3, 9, 30


def make_network(shape: EncoderConfig = SHAPE) -> TwoTower:
    network = TwoTower(shape, Embeddings(VOCABULARY, shape))
    initialise(network, 3)
    with torch.no_grad():  # away from the beginning, where a layer hardly moves anything
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return network


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randint(5, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    return rows, (torch.arange(LENGTH) > 4).long().repeat(ROWS, 1)


@pytest.mark.parametrize("changed", range(LENGTH))
def test_a_token_is_named_from_all_others_and_not_from_itself(changed):
    rows, segments = tokens()
    network = make_network()
    before = network(rows, segments)
    assert before.shape == (ROWS, LENGTH, VOCABULARY)
    rows[:, changed] = (rows[:, changed] + 1) % VOCABULARY
    after = network(rows, segments)
    others = torch.arange(LENGTH) != changed
    assert torch.equal(before[:, changed], after[:, changed])
    assert ((before - after)[:, others].abs().amax(-1) > 1e-5).all()


def test_no_gradient_of_a_token_s_scores_reaches_the_token():
    """The same by derivatives, with dropout and all."""
    rows, segments = tokens()
    network = make_network(replace(SHAPE, dropout=0.2, attention_dropout=0.2))
    vectors = network.left.embeddings.word(rows).detach().requires_grad_()
    features = network.head(network.states(vectors, segments, row_keys(0, 0, torch.arange(ROWS, dtype=torch.int32))))
    for place in range(LENGTH):
        (slopes,) = torch.autograd.grad(features[:, place].square().sum(), vectors, retain_graph=True)
        heard = slopes.abs().amax(-1) > 0  # [B, T]
        assert not heard[:, place].any()
        assert heard[:, :place].any(1).all() or place == 0
        assert heard[:, place + 1 :].any(1).all() or place == LENGTH - 1


def test_each_side_has_its_half_and_the_ends_have_nothing():
    rows, segments = tokens()
    network = make_network()
    left, right = network.states(rows, segments).split(SHAPE.width, -1)
    assert not left[:, 0].any()
    assert not right[:, -1].any()
    assert left[:, 1:].any(-1).all()
    assert right[:, :-1].any(-1).all()
    rows[:, 5] = (rows[:, 5] + 1) % VOCABULARY
    new_left, new_right = network.states(rows, segments).split(SHAPE.width, -1)
    assert torch.equal(left[:, :6], new_left[:, :6])
    assert torch.equal(right[:, 5:], new_right[:, 5:])
    assert (left[:, 6:] != new_left[:, 6:]).any(-1).all()
    assert (right[:, :5] != new_right[:, :5]).any(-1).all()


def test_rows_may_be_padded():
    rows, segments = tokens()
    network = make_network()
    mask = torch.ones_like(rows)
    mask[:, 6:] = 0
    padded = network(rows, segments, mask)[:, :6]
    assert torch.allclose(padded, network(rows[:, :6], segments[:, :6]), atol=1e-6)


def test_towers_drop_each_its_own_elements():
    """Of one token that sees nothing but itself, towers with the same weights say the same, but for the noise."""
    network, place = make_network(replace(SHAPE, dropout=0.3, attention_dropout=0.0)), 4
    network.right.load_state_dict(network.left.state_dict())
    rows, segments = tokens()
    alone = (torch.arange(LENGTH) == place).repeat(ROWS, 1)
    for keys in (None, row_keys(0, 0, torch.arange(ROWS, dtype=torch.int32))):
        left, right = network.states(rows, segments, keys, alone).split(SHAPE.width, -1)
        is_same = torch.isclose(left[:, place + 1], right[:, place - 1], atol=1e-5)
        assert is_same.all() if keys is None else is_same.double().mean() < 0.2
        again, _ = network.states(rows, segments, keys, alone).split(SHAPE.width, -1)
        assert torch.equal(left, again)


def test_towers_share_the_embeddings_and_nothing_else():
    network = make_network()
    assert network.left.embeddings is network.right.embeddings
    assert network.table is network.left.embeddings.word.weight
    own = [
        {id(parameter) for name, parameter in tower.named_parameters() if not name.startswith("embeddings")}
        for tower in (network.left, network.right)
    ]
    assert own[0]
    assert not own[0] & own[1]
