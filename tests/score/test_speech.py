"""Tags ride along with tokens: into the same rows, whatever the tokenizer."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ADJECTIVES, NOUNS, VERBS
from elektron.score import speech
from elektron.tasks.tagging import Sentence
from elektron.train.loop import first_batches

words = st.sampled_from([(word, tag) for tag, some in (("N", NOUNS), ("V", VERBS), ("A", ADJECTIVES)) for word in some])
sentences = st.lists(st.lists(words, min_size=1, max_size=9), min_size=1, max_size=6)


def sentence(pairs) -> Sentence:
    return Sentence([word for word, _ in pairs], [tag for _, tag in pairs])


@pytest.mark.parametrize("which", ["small_tokenizer", "byte_tokenizer"])
def test_tokens_have_their_words_tags(which, request):
    tokenizer = request.getfixturevalue(which)

    @given(sentences)
    @settings(deadline=None, max_examples=40)
    def check(drawn):
        found = speech.tagged(speech.of_sentences(map(sentence, drawn)), tokenizer, "here")
        pieces = [(tag, len(tokenizer.encode([f" {word}"])[0])) for pairs in drawn for word, tag in pairs]
        expected = [tag for tag, count in pieces for _ in range(count)]
        tags = found.tags.read(np.array([0]), found.tags.tokens)[0]
        assert [found.names[tag] for tag in tags] == expected
        ids, lengths = tokenizer.encode([" ".join(word for word, _ in pairs) for pairs in drawn])
        assert found.tokens.read(np.array([0]), found.tokens.tokens)[0].tolist() == ids.tolist()
        assert found.tokens.ends(found.tokens.tokens).tolist() == np.cumsum(lengths).tolist()

    check()


@given(sentences, st.integers(6, 30))
@settings(deadline=None, max_examples=40)
def test_both_are_cut_into_the_same_rows(small_tokenizer, drawn, length):
    found = speech.tagged(speech.of_sentences(map(sentence, drawn)), small_tokenizer, "here")
    numbers = {
        int(token): found.names.index(tag)
        for pairs in drawn
        for word, tag in pairs
        for token in small_tokenizer.encode([word])[0]
    }
    tokens, tags = (
        torch.cat([batch.original for batch in first_batches(stream, small_tokenizer.specials, length, 1000, 7)])
        for stream in (found.tokens, found.tags)
    )
    specials = small_tokenizer.specials
    is_text = (tokens != specials.cls) & (tokens != specials.sep)
    assert is_text.sum() >= found.tokens.tokens
    assert [numbers[token] for token in tokens[is_text].tolist()] == tags[is_text].tolist()


def test_text_without_tags_is_refused(small_tokenizer):
    for empty in ([], [speech.Text("a cat", [0, 2], ["", ""])], [speech.Text("\u0007", [0], ["X"])]):
        with pytest.raises(ValueError, match="--tagged x: no word has a tag"):
            speech.tagged(empty, small_tokenizer, "--tagged x")


def test_documents_are_text_again(data):
    """All of the held-out text, cut where documents end, and no further than asked."""
    found = list(speech.documents(data.held, data.tokenizer, 10**9))
    assert len(found) == len(data.held.ends(data.held.tokens))
    ids, _ = data.tokenizer.encode(found)
    assert ids.tolist() == data.held.read(np.array([0]), data.held.tokens)[0].tolist()
    assert list(speech.documents(data.held, data.tokenizer, 5)) == [data.tokenizer.text(ids[:5].tolist())]


def test_a_pipeline_of_spacy_tags_words(tmp_path, small_tokenizer):
    """A real one, from a folder: rules alone, since no model can be downloaded for a test."""
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed: pip install 'elektron[spacy]'")
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("attribute_ruler")
    for part, some in (("NOUN", NOUNS), ("VERB", VERBS), ("ADJ", ADJECTIVES), ("PUNCT", ["."]), ("DET", ["the", "a"])):
        ruler.add([[{"LOWER": {"IN": list(some)}}]], {"POS": part})
    pipeline.to_disk(tmp_path / "rules")
    texts = ["The old cat sees a dog.", "A quiet river follows a king. The fish likes a house."]
    found = speech.tagged(speech.by_spacy(str(tmp_path / "rules"), texts), small_tokenizer, "--spacy rules")
    tags = [found.names[tag] for tag in found.tags.read(np.array([0]), found.tags.tokens)[0]]
    expected = {"DET", "ADJ", "NOUN", "VERB", "PUNCT"}
    assert set(tags) == expected
    tokens = small_tokenizer.spelled(found.tokens.read(np.array([0]), found.tokens.tokens)[0].tolist())
    for token, tag in zip(tokens, tags, strict=True):
        if token in {*NOUNS, *VERBS, *ADJECTIVES}:
            assert tag == {**dict.fromkeys(NOUNS, "NOUN"), **dict.fromkeys(VERBS, "VERB")}.get(token, "ADJ")
    with pytest.raises(ValueError, match="no pipeline that is installed"):
        list(speech.by_spacy(str(tmp_path / "nowhere"), texts))
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(ValueError, match="no word has a tag"):
        speech.tagged(speech.by_spacy(str(tmp_path / "blank"), texts), small_tokenizer, "--spacy blank")


def test_without_spacy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ValueError, match=r"pip install 'elektron\[spacy\]'"):
        list(speech.by_spacy("en_core_web_sm", ["text"]))
