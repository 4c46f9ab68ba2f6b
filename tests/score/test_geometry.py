"""The geometry of states against loops over pairs and numpy's own decomposition."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elektron.interop.huggingface import load_encoder
from elektron.score.geometry import Layer, Spread, Text, as_they_are, effective_rank, layers_of, read_anew
from elektron.train.loop import held_batches


def slow(states: torch.Tensor, counts: torch.Tensor) -> Layer:
    """By the definitions, over all pairs of tokens."""
    numbered = [
        (row, states[row, place].double().numpy())
        for row in range(len(states))
        for place in range(states.shape[1])
        if counts[row, place]
    ]
    cosines: dict[bool, list[float]] = {True: [], False: []}
    for (row, one), (other_row, other) in itertools.combinations(numbered, 2):
        cosines[row == other_row].append(float(one @ other / np.linalg.norm(one) / np.linalg.norm(other)))
    table = np.stack([state for _, state in numbered])
    singular = np.linalg.svd(table - table.mean(0), compute_uv=False)
    shares = singular / singular.sum()
    entropy = -sum(share * np.log(share) for share in shares if share > 0)
    return Layer(
        float(np.mean(cosines[False])),
        float(np.mean(cosines[True])),
        float(np.exp(entropy)),
        float(singular[0] ** 2 / (singular**2).sum()),
        float(np.linalg.norm(table, axis=1).mean()),
        states.shape[-1],
    )


def fast(states: torch.Tensor, counts: torch.Tensor, size: int = 1 << 30) -> Layer:
    spread = Spread(states.shape[-1])
    for part, here in zip(states.split(size), counts.split(size), strict=True):
        spread.add(part, here)
    return spread.layer()


@st.composite
def some_states(draw):
    rows, length, width = draw(st.integers(2, 5)), draw(st.integers(2, 6)), draw(st.integers(1, 7))
    noise = torch.Generator().manual_seed(draw(st.integers(0, 2**40)))
    states = torch.randn(rows, length, width, generator=noise) + draw(st.sampled_from([0.0, 3.0, 1000.0]))
    counts = torch.rand(rows, length, generator=noise) < 0.8
    counts[:2, :2] = True
    return states, counts


@given(some_states(), st.integers(1, 5))
@settings(deadline=None)
def test_all_pairs_and_all_singular_values(given, size):
    states, counts = given
    found, expected = fast(states, counts, size), slow(states, counts)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert -1 - 1e-9 <= found.anisotropy <= 1 + 1e-9
    assert 1 - 1e-9 <= found.rank <= found.width + 1e-9
    assert 1 / found.width - 1e-9 <= found.first <= 1 + 1e-9


@given(some_states(), st.sampled_from([1e-3, 0.5, 20.0]), st.integers(0, 99))
@settings(deadline=None)
def test_neither_turning_nor_scaling_changes_shape(given, scale, seed):
    states, counts = given
    noise = torch.Generator().manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(states.shape[-1], states.shape[-1], generator=noise, dtype=torch.float64))
    before, after = fast(states.double(), counts), fast(scale * states.double() @ turn, counts)
    assert after[:4] == pytest.approx(before[:4], rel=1e-6, abs=1e-7)
    assert after.norm == pytest.approx(scale * before.norm)


def test_states_of_all_directions_and_of_one():
    noise = torch.Generator().manual_seed(0)
    everywhere = torch.ones(40, 100, dtype=torch.bool)
    gaussian = fast(torch.randn(40, 100, 16, generator=noise), everywhere)
    assert abs(gaussian.anisotropy) < 0.005
    assert gaussian.rank == pytest.approx(16, abs=0.05)
    assert gaussian.norm == pytest.approx(4, abs=0.1)
    line = fast(torch.rand(40, 100, 1, generator=noise).add(0.1) * torch.arange(1.0, 17.0), everywhere)
    assert line.anisotropy == pytest.approx(1)
    assert line.rank == pytest.approx(1, abs=1e-4)
    assert line.first == pytest.approx(1)
    offset = fast(torch.randn(40, 100, 16, generator=noise) + 3, everywhere)
    assert offset.anisotropy == pytest.approx(9 / 10, abs=0.02), "mean^2 / (mean^2 + variance)"
    assert offset.rank == pytest.approx(16, abs=0.05), "a mean is no direction of its own"


def test_contexts_show_within_rows():
    """States that have something of their row are alike within it, and not beyond."""
    noise = torch.Generator().manual_seed(0)
    states = torch.randn(60, 20, 32, generator=noise) + torch.randn(60, 1, 32, generator=noise)
    found = fast(states, torch.ones(60, 20, dtype=torch.bool))
    assert found.within == pytest.approx(0.5, abs=0.05)
    assert abs(found.anisotropy) < 0.02


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12))
def test_effective_rank_counts_directions(values):
    singular = np.array(values)
    found = effective_rank(singular)
    assert 1 - 1e-9 <= found <= max(1, np.count_nonzero(singular)) + 1e-9
    assert effective_rank(np.full(len(values), 3.0)) == pytest.approx(len(values))


def test_one_row_has_no_other():
    spread = Spread(3)
    spread.add(torch.randn(1, 5, 3), torch.ones(1, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match="at least two"):
        spread.layer()


def test_layers_of_an_encoder_over_the_text_alone(untaught, data):
    """Each layer's states, but for [CLS] and [SEP], however rows are batched."""
    encoder = load_encoder(untaught / "discriminator").eval()
    (whole,), parts = (held_batches(data, 16, 6, size) for size in (6, 4))
    found = layers_of(encoder, as_they_are(parts, data.tokenizer))
    specials = data.tokenizer.specials
    counts = (whole.original != specials.cls) & (whole.original != specials.sep)
    assert counts.sum() == 6 * 13
    with torch.no_grad():
        states = encoder.states(whole.original, whole.segments)
    assert len(found) == len(states) == 3
    for layer, of_layer in zip(found, states, strict=True):
        assert layer == pytest.approx(slow(of_layer, counts), rel=1e-5, abs=1e-6)


def test_the_same_text_in_the_same_tokens_read_anew(untaught, data):
    """What is decoded and encoded again is what was there, wherever no word was cut by a row's end."""
    encoder = load_encoder(untaught / "discriminator").eval()
    batches = held_batches(data, 16, 40, 8)
    read = list(read_anew(batches, data.tokenizer, data.tokenizer, 32))
    pairs = [
        (text.tokens[i][text.mask[i]], text.segments[i][text.mask[i]], batch.original[i], batch.segments[i])
        for batch, text in zip(batches, read, strict=True)
        for i in range(len(batch.original))
    ]
    same = [len(a) == len(b) and torch.equal(a, b) and torch.equal(s, t) for a, s, b, t in pairs]
    assert sum(same) > len(same) / 2
    assert all(layer.rank > 1 for layer in layers_of(encoder, read))


@pytest.mark.parametrize("longest", [100, 12])
def test_another_tokenizer_reads_the_same_text(data, byte_tokenizer, longest):
    """[CLS] A [SEP] B [SEP] in its own tokens, padded to the longest row, or cut where there is no room."""
    (batch,) = held_batches(data, 16, 8, 8)
    (text,) = read_anew([batch], data.tokenizer, byte_tokenizer, longest)
    ours, theirs = data.tokenizer.specials, byte_tokenizer.specials
    assert text.mask.sum(1).max() == text.tokens.shape[1] <= longest
    assert text.mask.sum(1).min() < text.tokens.shape[1] or longest == 12
    for row in range(8):
        cut = batch.original[row].tolist().index(ours.sep)
        sides = [batch.original[row, 1:cut].tolist(), batch.original[row, cut + 1 : -1].tolist()]
        a, b = ([int(i) for i in byte_tokenizer.encode([data.tokenizer.text(side)])[0]] for side in sides)
        expected = [theirs.cls, *a, theirs.sep, *b, theirs.sep][:longest]
        padding = text.tokens.shape[1] - len(expected)
        assert text.tokens[row].tolist() == expected + [theirs.pad] * padding
        assert text.segments[row].tolist() == ([0] * (len(a) + 2) + [1] * (len(b) + 1))[:longest] + [0] * padding
        assert text.mask[row].tolist() == [True] * len(expected) + [False] * padding
        inside = [i not in (theirs.cls, theirs.sep) for i in expected]
        assert text.counts[row].tolist() == inside + [False] * padding


def test_padding_changes_nothing(untaught, data):
    """Rows of different lengths, together and alone."""
    encoder = load_encoder(untaught / "discriminator").eval()
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(5, 100, (n,), generator=draw) for n in (5, 9, 7)]
    alone = [Text(row[None], torch.zeros(1, len(row)).long(), *(torch.ones(1, len(row)).bool(),) * 2) for row in rows]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.arange(9) < torch.tensor([[5], [9], [7]])
    together = [Text(tokens, torch.zeros_like(tokens), mask, mask)]
    for one, other in zip(layers_of(encoder, alone), layers_of(encoder, together), strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
