"""What the generator would rather have read."""

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers

from elektron.data.tokenizer import ROLES, Tokenizer
from elektron.model.encoder import Embeddings, EncoderConfig
from elektron.model.heads import Generator
from elektron.score.reader import Reading
from elektron.score.suggest import Suggester
from elektron.score.words import words_of
from elektron.verbs.judges import Who, open_judges

SHAPE = EncoderConfig(layers=1, width=16, heads=2, feedforward_width=32, embedding_width=16, positions=12)


class Fixed(Generator):
    """Has the same opinion of every gap."""

    def __init__(self, tokens: Tokenizer, order: list[int]) -> None:
        super().__init__(SHAPE, Embeddings(tokens.vocab_size, SHAPE))
        torch.nn.init.zeros_(self.encoder.embeddings.word.weight)
        self.head.bias.data[order] = torch.arange(len(order), 0, -1.0)


def read(tokens: Tokenizer, text: str) -> Reading:
    (pieces,) = tokens.split([text])
    return Reading(text, pieces, np.zeros(len(pieces.ids), dtype=np.float32))


@pytest.mark.parametrize("kind", ["small_tokenizer", "byte_tokenizer"])
def test_whole_words_as_people_write_them(kind, request):
    tokens = request.getfixturevalue(kind)
    spelled = tokens.spelled(range(tokens.vocab_size))
    liked = [token for token, name in enumerate(tokens.tokens(range(tokens.vocab_size))) if "at" in name or "e" in name]
    reading = read(tokens, "The cat SEES a fish")
    words = words_of(reading)
    found = Suggester(Fixed(tokens, [*tokens.specials, *liked]), tokens).suggest([(reading, w) for w in words], 3)
    assert [len(better) for better in found] == [3] * len(words)
    for word, better in zip(words, found, strict=True):
        text = reading.text[word.start : word.stop]
        for suggestion in better:
            assert suggestion.text.lower() != text.lower()
            assert suggestion.text.lower() in [name.lower() for name in spelled]
            assert suggestion.text.isascii()
            assert not suggestion.text.startswith(("##", "["))
            assert suggestion.text.strip() == suggestion.text
        assert [s.probability for s in better] == sorted((s.probability for s in better), reverse=True)
    assert all(suggestion.text.isupper() for suggestion in found[2])
    assert all(suggestion.text[0].isupper() for suggestion in found[0])


def test_no_word_twice_in_a_vocabulary_with_capitals():
    words = "the The THE a A cat Cat dog Dog".split()
    vocabulary = {name: number for number, name in enumerate([*ROLES.values(), *words])}
    raw = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = Tokenizer(raw.to_str())
    reading = read(tokens, "The dog")
    suggester = Suggester(Fixed(tokens, [vocabulary[name] for name in words]), tokens)
    first, second = suggester.suggest([(reading, word) for word in words_of(reading)], 2)
    assert [suggestion.text for suggestion in first] == ["A", "Cat"]
    assert [suggestion.text for suggestion in second] == ["the", "The"]


def test_punctuation_for_punctuation(small_tokenizer):
    reading = read(small_tokenizer, "the cat .")
    word, _, mark = words_of(reading)
    names = small_tokenizer.spelled(range(small_tokenizer.vocab_size))
    order = [names.index("cat"), names.index("."), names.index("dog")]
    suggester = Suggester(Fixed(small_tokenizer, order), small_tokenizer)
    of_word, of_mark = suggester.suggest([(reading, word), (reading, mark)], 1)
    assert of_word[0].text == "cat"
    assert all(not suggestion.text.isalnum() for suggestion in of_mark)


def test_a_long_text_is_cut_around_the_word(small_tokenizer):
    """The network reads no more than it can, and the mask is there wherever the word is."""
    reading = read(small_tokenizer, "the cat sees a dog and the bird hears the old king " * 3)
    words = words_of(reading)
    suggester = Suggester(Fixed(small_tokenizer, list(range(5, 60))), small_tokenizer)
    for word in words:
        row = suggester._row(reading, word)
        assert len(row) == SHAPE.positions - 2
        (place,) = np.flatnonzero(row == small_tokenizer.specials.mask)
        assert row[:place].tolist() == reading.pieces.ids[: word.first][-place:].tolist() if place else True
        after = row[place + 1 :]
        assert after.tolist() == reading.pieces.ids[word.last :][: len(after)].tolist()
        assert min(place, len(after)) >= 4 or word in (*words[:4], *words[-4:])
    assert all(len(better) == 2 for better in suggester.suggest([(reading, word) for word in words], 2))
    assert suggester.suggest([], 2) == []
    (cut,) = suggester.split([reading.text])
    assert cut.pieces.ids.tolist() == reading.pieces.ids.tolist()


def test_short_texts_are_led_in(untaught):
    """As the generator says of the lead's end and the text together; long ones are not."""
    judges = open_judges(Who(model=str(untaught)))
    assert judges.generator is not None
    lead, tokens = "the old queen finds a river", judges.tokenizer
    texts = ["the cat sees a dog", "the cat sees a dog " * 5, "the cat sees a dog " * 9]
    led, plain = (Suggester(judges.generator, tokens, how) for how in (lead, ""))
    for text, before in zip(texts, (6, 5, 0), strict=True):
        reading, whole = read(tokens, text), read(tokens, " ".join([*lead.split()[6 - before :], text]))
        asked = [(reading, words_of(reading)[2])]
        assert led.suggest(asked, 3) == plain.suggest([(whole, words_of(whole)[before + 2])], 3)
        assert (led.suggest(asked, 3) == plain.suggest(asked, 3)) == (before == 0)
