"""Linear probes: the regression against scikit-learn's, and what can be read off an encoder's states."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from elektron.data.examples import IGNORED, Examples, Row
from elektron.data.tokenizer import Specials
from elektron.model.encoder import Embeddings, Encoder, EncoderConfig
from elektron.model.initial import initialise
from elektron.train.probe import DECAY, fitted, probe

SHAPE = EncoderConfig(layers=1, width=32, heads=2, feedforward_width=32, embedding_width=32, positions=16, dropout=0.3)
SPECIALS = Specials(0, 1, 2, 3, 4)


def test_the_regression_is_scikit_learn_s():
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(4, 6))
    targets = draw.integers(0, 4, 400)
    states = (centres[targets] + draw.normal(size=(400, 6))).astype(np.float32)
    weights, bias = fitted(torch.from_numpy(states), torch.from_numpy(targets), 4)
    theirs = LogisticRegression(C=1 / (DECAY * 400), max_iter=1000, tol=1e-8).fit(states, targets)
    ours = torch.softmax(torch.from_numpy(states) @ weights.T + bias, -1).numpy()
    assert np.abs(ours - theirs.predict_proba(states)).max() < 2e-3


def rows_of(seed: int, count: int) -> list[Row]:
    """Every other token has a class: the remainder of its number by three."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        tokens = np.concatenate([[2], draw.integers(5, 40, draw.integers(3, 12)), [3]])
        classes = np.where((np.arange(len(tokens)) % 2 == 1) & (tokens > 4), tokens % 3, IGNORED)
        rows.append(Row(tokens, len(tokens), classes))
    return rows


def test_what_states_tell_is_read_off_row_by_row():
    encoder = Encoder(SHAPE, Embeddings(40, SHAPE))
    initialise(encoder, 0)
    before = {name: parameter.clone() for name, parameter in encoder.named_parameters()}
    train, asked = rows_of(0, 200), rows_of(1, 30)
    device = torch.device("cpu")
    known, unknown = (Examples(rows, SPECIALS, device, are_tagged=True) for rows in (train, asked))
    found = probe(encoder, known, unknown, 3)
    assert [scores.shape for scores in found] == [(len(row.tokens), 3) for row in asked]
    right = [
        scores[place].argmax() == klass
        for scores, row in zip(found, asked, strict=True)
        for place, klass in enumerate(row.target)
        if klass != IGNORED
    ]
    assert np.mean(right) > 0.95, "a token's own number is in its state, with one layer and embeddings as wide"
    again = probe(encoder, known, unknown, 3)
    assert all(np.array_equal(*pair) for pair in zip(found, again, strict=True))
    assert all(torch.equal(before[name], parameter) for name, parameter in encoder.named_parameters())


def test_nothing_is_read_off_where_there_is_nothing():
    encoder = Encoder(SHAPE, Embeddings(40, SHAPE))
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
    rows = rows_of(0, 100)
    examples = Examples(rows, SPECIALS, torch.device("cpu"), are_tagged=True)
    scores = np.concatenate(
        [found[row.target != IGNORED] for found, row in zip(probe(encoder, examples, examples, 3), rows, strict=True)]
    )
    assert scores.std(0).max() == pytest.approx(0.0, abs=1e-6)
