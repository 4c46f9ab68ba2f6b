import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models, pre_tokenizers

from conftest import documents
from elektron.data.tokenizer import ROLES, Tokenizer, TokenizerConfig, load, save, train

TEXTS = {
    "english": documents(40),
    "german": ["Die Bäume im größten Wald grünen früh.", "Müßiggang ist aller Laster Anfang."] * 20,
    "russian": ["Все счастливые семьи похожи друг на друга.", "Каждая несчастливая семья несчастлива по-своему."] * 20,
    "chinese": ["道可道，非常道。名可名，非常名。", "无名天地之始；有名万物之母。"] * 20,
    "hindi": ["सभी मनुष्य जन्म से स्वतन्त्र हैं।", "उन्हें बुद्धि और अन्तरात्मा की देन प्राप्त है।"] * 20,
}


def trained(texts, **options) -> Tokenizer:
    return train(lambda: iter(texts), replace(TokenizerConfig(vocab_size=300), **options))


@pytest.mark.parametrize("language", TEXTS)
def test_training_is_a_function_of_the_text(language):
    first, second = trained(TEXTS[language]), trained(TEXTS[language])
    assert first.json == second.json
    assert first.hash == second.hash
    assert first.vocab_size <= 300


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("lowercase", [True, False])
def test_every_language_is_covered(language, lowercase):
    made = trained(TEXTS[language], lowercase=lowercase, strip_accents=False, character_coverage=1.0)
    ids, lengths = made.encode(TEXTS[language][:5])
    assert lengths.sum() == len(ids) > 0
    assert made.specials.unk not in ids


def test_coverage_leaves_rare_characters_out():
    texts = ["the cat " * 500 + "☃"]
    assert "☃" in trained(texts, character_coverage=1.0).json
    assert "☃" not in trained(texts, character_coverage=0.999).json


@pytest.mark.parametrize(("lowercase", "strip_accents"), [(True, True), (True, False), (False, False)])
def test_case_and_accents_are_what_was_asked(lowercase, strip_accents):
    made = trained(TEXTS["german"], lowercase=lowercase, strip_accents=strip_accents, character_coverage=1.0)
    text = "".join(token.removeprefix("##") for token in made.tokens(made.encode(["Die Bäume"])[0].tolist()))
    expected = "Diebäume" if not lowercase else "diebäume"
    expected = expected.replace("b", "B") if not lowercase else expected
    assert text == (expected.replace("ä", "a") if strip_accents else expected)


def test_words_like_special_tokens_are_text(small_tokenizer):
    ids, _ = small_tokenizer.encode(["the [MASK] [SEP] [CLS] [PAD] cat"])
    specials = set(small_tokenizer.specials) - {small_tokenizer.specials.unk}
    assert not specials & set(ids.tolist())
    assert small_tokenizer.tokens(ids.tolist())[:2] == ["the", "["] or small_tokenizer.specials.unk in ids


def test_words_like_special_tokens_are_unknown_where_words_end_at_spaces():
    vocabulary = {name: i for i, name in enumerate([*ROLES.values(), "cat"])}
    raw = RawTokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = Tokenizer(raw.to_str())
    assert made.encode(["cat [MASK] [SEP]"])[0].tolist() == [5, 1, 1]


def test_encode_is_the_texts_in_order(small_tokenizer):
    texts = ["the cat sees a dog .", "", "a bird"]
    ids, lengths = small_tokenizer.encode(texts)
    assert lengths[1] == 0
    separate = [small_tokenizer.encode([text])[0] for text in texts]
    assert np.array_equal(ids, np.concatenate(separate))
    assert lengths.tolist() == [len(part) for part in separate]


def test_split_knows_where_tokens_stand(small_tokenizer):
    text = "The OLD cat, she saw."
    found, nothing = small_tokenizer.split([text, ""])
    assert found.ids.tolist() == small_tokenizer.encode([text])[0].tolist()
    assert text[slice(*found.offsets[1])] == "OLD"
    assert found.words.tolist() == sorted(found.words)
    assert [part.shape for part in nothing] == [(0,), (0, 2), (0,)]


def test_an_accent_belongs_to_its_letter(small_tokenizer):
    (found,) = small_tokenizer.split(["cat\u0301\u0302 dog"])
    assert found.offsets.max(0).tolist() == [6, 9]
    assert 5 in found.offsets[:, 1]


@pytest.fixture
def vocabulary_file(tmp_path, small_tokenizer):
    words = RawTokenizer.from_str(small_tokenizer.json).get_vocab()
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(sorted(words, key=lambda word: words[word])) + "\n")
    return path


def test_vocab_txt_is_bert_s_tokenizer(vocabulary_file, small_tokenizer):
    ours = load(vocabulary_file, TokenizerConfig())
    theirs = transformers.BertTokenizer(str(vocabulary_file), do_lower_case=True)
    text = "The Óld cat, (naïvely) sees 語 a DOG!"
    assert ours.encode([text])[0].tolist() == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.encode([text])[0].tolist() == small_tokenizer.encode([text])[0].tolist()


def test_a_cased_vocabulary_is_not_lower_cased(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*ROLES.values(), "[unused0]", "Cat", "cat"]))
    with pytest.raises(ValueError, match="cased vocabulary.*'Cat'.*--no-lowercase"):
        load(path, TokenizerConfig())
    cased = load(path, TokenizerConfig(lowercase=False, strip_accents=False))
    assert cased.encode(["Cat cat CAT"])[0].tolist() == [6, 7, 1]


@pytest.mark.parametrize("missing", ROLES.values())
def test_a_vocabulary_without_a_special_token_is_refused(tmp_path, missing):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(name for name in [*ROLES.values(), "cat"] if name != missing))
    with pytest.raises(ValueError, match=rf"no \[{missing[1:-1]}\]"):
        load(path, TokenizerConfig())


def test_a_tokenizer_json_without_mask_is_refused():
    raw = RawTokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}, unk_token="[UNK]"))
    with pytest.raises(ValueError, match=r"no \[MASK\]"):
        Tokenizer(raw.to_str())


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {}}'])
def test_nonsense_is_no_tokenizer(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        load(path, TokenizerConfig())


def test_missing_tokenizers(tmp_path):
    with pytest.raises(ValueError, match="no such tokenizer"):
        load(tmp_path / "none.json", TokenizerConfig())
    with pytest.raises(ValueError, match="no tokenizer in folder"):
        load(tmp_path, TokenizerConfig())


def test_a_saved_folder_loads_here_and_in_transformers(tmp_path, small_tokenizer):
    save(small_tokenizer, tmp_path, 64)
    again = load(tmp_path, TokenizerConfig())
    assert (again.hash, again.specials, again.names) == (
        small_tokenizer.hash,
        small_tokenizer.specials,
        small_tokenizer.names,
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    pair = theirs("The cat sees.", "A dog hears.")
    first, second = (small_tokenizer.encode([text])[0].tolist() for text in ("The cat sees.", "A dog hears."))
    cls, sep = small_tokenizer.specials.cls, small_tokenizer.specials.sep
    assert pair["input_ids"] == [cls, *first, sep, *second, sep]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert theirs.mask_token_id == small_tokenizer.specials.mask


def test_special_tokens_by_other_names(tmp_path):
    names = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    vocabulary = {name: i for i, name in enumerate([*names.values(), "cat"])}
    raw = RawTokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.save(str(tmp_path / "tokenizer.json"))
    settings: dict[str, Any] = {f"{role}_token": name for role, name in names.items()}
    settings["mask_token"] = {"content": "<mask>", "lstrip": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load(tmp_path, TokenizerConfig()).specials == (0, 1, 2, 3, 4)


def test_a_folder_with_a_vocab_txt_obeys_its_config(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*ROLES.values(), "Bäume"]))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "strip_accents": false}')
    assert load(tmp_path, TokenizerConfig()).encode(["Bäume"])[0].tolist() == [5]


def test_padding_and_truncation_are_no_part_of_the_hash(small_tokenizer):
    raw = RawTokenizer.from_str(small_tokenizer.json)
    raw.enable_truncation(8)
    raw.enable_padding(length=8)
    bounded = Tokenizer(raw.to_str())
    assert bounded.hash == small_tokenizer.hash
    assert len(bounded.encode(["the cat " * 20])[0]) == len(small_tokenizer.encode(["the cat " * 20])[0]) > 8


def test_no_text_is_an_error():
    with pytest.raises(ValueError, match="corpus is empty"):
        trained([])


def test_a_vocabulary_s_lines_end_at_newlines_alone(tmp_path):
    words = [*ROLES.values(), "\u2028", "\x85", "hello", "world"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    found = load(tmp_path / "vocab.txt", TokenizerConfig())
    assert found.vocab_size == len(words)
    assert found.encode(["hello world"])[0].tolist() == [7, 8]
    (tmp_path / "vocab.txt").write_text("\n".join([*words, "hello"]), encoding="utf-8")
    with pytest.raises(ValueError, match="'hello' stands in it more than once"):
        load(tmp_path / "vocab.txt", TokenizerConfig())
