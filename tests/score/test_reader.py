"""Texts through a discriminator, and words out of them."""

from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elektron.data.tokenizer import Tokenizer
from elektron.model.encoder import Embeddings, EncoderConfig
from elektron.model.heads import Discriminator, Generator
from elektron.model.initial import initialise
from elektron.score import rows as score_rows
from elektron.score.reader import GATHERED, Reader, Reading
from elektron.score.rows import Row, masked_log_probabilities, replaced_logits
from elektron.score.words import words_of

Network = TypeVar("Network", Discriminator, Generator)
SHAPE = EncoderConfig(layers=2, width=32, heads=2, feedforward_width=64, embedding_width=16, positions=24)
TEXTS = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(
            "the cat sees a dog. \t\r\n\u0301\u200d\ufe0f\u00df\u0130\U0001f469\u05d0\u0627\u4e2d\u00a0\ufeff\ud800"
        ),
    ),
    max_size=200,
)
HARD = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def make_network(tokens: Tokenizer, shape: EncoderConfig = SHAPE) -> Discriminator:
    return with_opinions(Discriminator(shape, Embeddings(tokens.vocab_size, shape)))


def with_opinions(network: Network) -> Network:
    """Its logits are far apart."""
    initialise(network, 0)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=noise)
    return network.eval()


def make_reader(tokens: Tokenizer, shape: EncoderConfig = SHAPE) -> Reader:
    return Reader(replaced_logits(make_network(tokens, shape), tokens.specials), tokens, shape.positions)


def alone(network: Discriminator, tokens: Tokenizer, text: str) -> np.ndarray:
    """The logits of a text that fits, by the network itself."""
    (pieces,) = tokens.split([text])
    row = torch.tensor([[tokens.specials.cls, *pieces.ids.tolist(), tokens.specials.sep]])
    with torch.no_grad():
        return network(row, torch.zeros_like(row))[0, 1:-1].numpy()


def test_texts_come_back_in_order_with_what_each_gets_alone(small_tokenizer, monkeypatch):
    monkeypatch.setitem(score_rows._TOKENS, "cpu", 64)
    reader, network = make_reader(small_tokenizer), make_network(small_tokenizer)
    texts = ["the cat sees a dog .", "", "a", "the old bird sees the cat and a fish", "   ", "dog " * 15]
    for gathered in (0, 30, GATHERED):
        found = list(reader.read(texts, gathered))
        assert [reading.text for reading in found] == texts
        for reading in found:
            assert np.abs(reading.said - alone(network, small_tokenizer, reading.text)).max(initial=0) < 1e-5
    assert np.ptp(found[3].said) > 0.5, "logits that differ, or nothing is shown"


def test_long_texts_are_read_where_there_is_most_context(small_tokenizer):
    reader = make_reader(small_tokenizer)
    words = ("the old cat sees a small dog and the bird flies over a house " * 8).split()
    ((reading,), room) = list(reader.read([" ".join(words)])), SHAPE.positions - 2
    count = len(reading.said)
    assert count > 3 * room
    starts = [*range(0, count - room + room // 2, room // 2)]
    rows = [range(start, min(start + room, count)) for start in starts if start == 0 or start + room // 2 < count]
    by_row = reader._say([Row(reading.pieces.ids[row.start : row.stop]) for row in rows])
    for token, logit in enumerate(reading.said):
        showing = [(n, row) for n, row in enumerate(rows) if token in row]
        context = {n: (min(token - row[0], row[-1] - token), len(row)) for n, row in showing}
        best = max(context, key=lambda n: (context[n], -n))
        assert logit == pytest.approx(by_row[best][token - rows[best].start], abs=1e-5)


@pytest.mark.parametrize("way", ["detection", "masked"])
def test_short_texts_are_led_in(small_tokenizer, way):
    """By the end of the lead, as far as there is room; texts that need windows are not."""
    lead, room = "the old queen finds a river sees a fish", SHAPE.positions - 2
    if way == "masked":
        network = with_opinions(Generator(SHAPE, Embeddings(small_tokenizer.vocab_size, SHAPE)))
        say = masked_log_probabilities(network, small_tokenizer.specials)
    else:
        say = replaced_logits(make_network(small_tokenizer), small_tokenizer.specials)
    assert list(Reader(say, small_tokenizer, room + 2, "half a character: \ud800").read(["the cat"]))
    texts = ["the cat", "", "a dog " * 9, "cat " * room, "bird " * (2 * room)]
    led, plain = (list(Reader(say, small_tokenizer, room + 2, how).read(texts)) for how in (lead, ""))
    ids = small_tokenizer.split([lead])[0].ids
    assert len(ids) == 9
    for reading, alone, before in zip(led, plain, (9, 0, room - 18, 0, 0), strict=True):
        assert reading.text == alone.text
        assert len(reading.said) == len(alone.said) == len(reading.pieces.ids)
        if not before:
            assert np.abs(reading.said - alone.said).max(initial=0) < 1e-5
            continue
        whole = np.concatenate([ids[9 - before :], reading.pieces.ids])
        (expected,) = say([Row(whole)])
        assert np.abs(reading.said - expected[before:]).max() < 1e-5
        assert np.abs(reading.said - alone.said).max() > 1e-3, "the lead is read"


def test_it_reads_no_more_than_it_needs(small_tokenizer):
    """Of an endless stream."""
    asked = 0

    def stream():
        nonlocal asked
        while True:
            asked += 1
            yield "the cat sees a dog ."

    readings = make_reader(small_tokenizer).read(stream(), gathered=1000)
    for _ in range(60):
        next(readings)
    assert asked <= 102


def test_a_line_of_a_megabyte(small_tokenizer):
    line = "the cat sees a dog . " * 50_000
    (reading,) = make_reader(small_tokenizer, replace(SHAPE, positions=512, layers=1, width=16)).read([line])
    words = words_of(reading)
    assert len(words) == 300_000
    assert {line[word.start : word.stop] for word in words} == set("the cat sees a dog .".split())


@HARD
@given(texts=st.lists(TEXTS, max_size=4))
@pytest.mark.parametrize("kind", ["small_tokenizer", "byte_tokenizer"])
def test_words_rebuild_the_text(texts, kind, request):
    tokens = request.getfixturevalue(kind)
    for text, reading in zip(texts, make_reader(tokens).read(texts), strict=True):
        assert reading.text == text
        words = words_of(reading)
        for word in words:
            piece = text[word.start : word.stop]
            assert piece
            assert piece.strip() == piece
            assert 0 <= word.replaced <= 1
        for before, after in pairwise(words):
            assert before.stop <= after.start
            assert before.last <= after.first
        between = [text[a:b] for a, b in pairwise([0, *(end for word in words for end in word[:2]), len(text)])]
        assert "".join(between) == text
        left_out = "".join(between[::2])
        assert not any(character.isalnum() and character.isascii() for character in left_out)


def test_a_word_is_as_suspicious_as_its_worst_token(small_tokenizer):
    (pieces,) = small_tokenizer.split(["unseenish cat"])
    assert len(pieces.ids) > 2
    logits = np.linspace(-3, 3, len(pieces.ids), dtype=np.float32)[::-1]
    first, second = words_of(Reading("unseenish cat", pieces, logits))
    assert (first.start, first.stop, second.start, second.stop) == (0, 9, 10, 13)
    assert first.replaced == pytest.approx(1 / (1 + np.exp(-3)))
    assert second.replaced == pytest.approx(1 / (1 + np.exp(-logits[second.first :].max())))
    assert (first.first, first.last, second.last) == (0, second.first, len(pieces.ids))
