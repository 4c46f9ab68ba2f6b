import pytest

from elektron.train.health import troubles

FINE = {
    "detection_auc": 0.8,
    "discriminator_recall": 0.4,
    "generator_loss": 3.0,
    "replaced_rate": 0.08,
}


@pytest.mark.parametrize(
    ("change", "name", "word"),
    [
        ({}, None, ""),
        ({"detection_auc": 0.51, "discriminator_recall": 0.0}, "stuck", "majority class"),
        ({"generator_loss": 6.5}, "ignorant", "word frequencies"),
        ({"replaced_rate": 0.02}, "strong", "generator_width"),
    ],
)
def test_trouble_has_a_name_and_a_sentence(change, name, word):
    found = troubles(FINE | change, unigram_loss=6.0, mask_rate=0.15, progress=0.5)
    assert list(found) == ([name] if name else [])
    assert all(word in message for message in found.values())
    assert troubles(FINE | change, unigram_loss=6.0, mask_rate=0.15, progress=0.05) == {}


def test_an_encoder_that_names_tokens_is_held_against_word_frequencies_unless_it_may_copy():
    for record, expected in (
        ({"encoder_loss": 6.5}, ["ignorant"]),
        ({"encoder_loss": 5.5}, []),
        ({"encoder_loss": 6.5, "generator_loss": 3.0, "replaced_rate": 0.1}, []),
    ):
        assert list(troubles(record, unigram_loss=6.0, mask_rate=0.15, progress=0.5)) == expected
