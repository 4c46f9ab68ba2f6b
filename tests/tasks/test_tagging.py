import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models, pre_tokenizers, trainers

from elektron.data.examples import IGNORED
from elektron.data.tokenizer import ROLES, Tokenizer
from elektron.tasks.tagging import (
    Sentence,
    labels_of,
    pieces,
    read_columns,
    read_jsonl,
    read_m2,
    to_bio,
    to_bioes,
    words_predicted,
)

TAGS = ("B-NP", "I-NP", "O")
CHUNKED = [Sentence(["The", "old cat", "sees"], ["B-NP", "I-NP", "O"]), Sentence(["Yes"], ["O"])]
WORDS = st.one_of(
    st.sampled_from("The cat sees remembers a mountain . don't [MASK] [SEP] \u00ad \u200b \x00 \xa0 ☃".split(" ")),
    st.text(max_size=12),
)
SENTENCES = st.lists(
    st.lists(st.tuples(WORDS, st.sampled_from(TAGS)), max_size=12).map(
        lambda pairs: Sentence([word for word, _ in pairs], [tag for _, tag in pairs])
    ),
    max_size=8,
)
many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(folder, text: str | bytes, name: str = "file.txt"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(read, *arguments, **options) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (what it says is what the caller looks at)
        read(*arguments, **options)
    return str(caught.value)


# Rows: the obvious way.


def obvious_rows(sentence: Sentence, tokenizer: Tokenizer, longest: int) -> list[tuple[list[int], dict[int, str]]]:
    """The tokens of each row, and the tag at each place that has one."""
    specials = tokenizer.specials
    rows: list[tuple[list[int], dict[int, str]]] = []
    for word, tag in zip(*sentence, strict=True):
        ids = tokenizer.encode([word])[0].tolist() or [specials.unk]
        ids = ids[: longest - 2]
        if not rows or len(rows[-1][0]) + len(ids) > longest - 1:
            rows.append(([specials.cls], {}))
        tokens, tags = rows[-1]
        tags[len(tokens)] = tag
        tokens.extend(ids)
    return [([*tokens, specials.sep], tags) for tokens, tags in rows]


@given(SENTENCES, st.integers(3, 30))
@many
def test_rows_are_the_obvious_ones(small_tokenizer, sentences, longest):
    made = pieces(sentences, small_tokenizer, TAGS, longest, "here")
    expected = [obvious_rows(sentence, small_tokenizer, longest) for sentence in sentences]
    assert [len(place) for place in made.places] == [len(rows) for rows in expected]
    assert made.cut == sum(len(rows) > 1 for rows in expected)
    for row, (tokens, tags) in zip(made.rows, (row for rows in expected for row in rows), strict=True):
        assert row.tokens.tolist() == tokens
        assert len(tokens) <= longest
        assert row.second == len(tokens)
        assert row.target.dtype == np.int64
        assert row.target.shape == row.tokens.shape
        assert {i: TAGS[c] for i, c in enumerate(row.target.tolist()) if c != IGNORED} == tags


@given(SENTENCES, st.integers(3, 30))
@many
def test_tags_come_back(small_tokenizer, sentences, longest):
    made = pieces(sentences, small_tokenizer, TAGS, longest, "here")
    noise = np.random.default_rng(longest)
    logits = [noise.random((len(row.tokens), len(TAGS))) + np.eye(len(TAGS))[row.target.clip(0)] for row in made.rows]
    predicted = words_predicted(logits, made.rows, made.places, TAGS)
    assert predicted == [sentence.tags for sentence in sentences]


def test_a_long_sentence_keeps_all_its_words(small_tokenizer):
    sentence = Sentence(["The", "cat", "sees", "a", "dog"] * 40, ["O"] * 200)
    made = pieces([sentence, CHUNKED[1]], small_tokenizer, ("O",), 16, "here")
    assert made.cut == 1
    assert made.places[1] == range(len(made.rows) - 1, len(made.rows))
    assert sum((row.target != IGNORED).sum() for row in made.rows) == 201
    inside = np.concatenate([row.tokens[1:-1] for row in made.rows])
    assert np.array_equal(inside, small_tokenizer.encode([" ".join(sentence.words) + " Yes"])[0])


def test_a_word_longer_than_a_row_is_cut(small_tokenizer):
    made = pieces([Sentence(["a", "xyxyxy" * 9, "a"], ["O"] * 3)], small_tokenizer, ("O",), 5, "here")
    assert all(len(row.tokens) <= 5 for row in made.rows)
    assert sum((row.target == 0).sum() for row in made.rows) == 3


def test_words_begin_as_they_do_in_running_text():
    """Where the tokens of a word differ after a space, as in byte-level BPE."""
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text = "the cat sees the dog and the dog sees the cat"
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=list(ROLES.values()), show_progress=False)
    raw.train_from_iterator([text] * 20, trainer)
    tokenizer = Tokenizer(raw.to_str())
    made = pieces([Sentence(list(text.split()), ["O"] * 11)], tokenizer, ("O",), 512, "here")
    assert np.array_equal(made.rows[0].tokens[1:-1], tokenizer.encode([f" {text}"])[0])


def test_an_unknown_tag_is_named(small_tokenizer):
    sentences = [CHUNKED[1], CHUNKED[0]]
    said = refusal(pieces, sentences, small_tokenizer, ("B-NP", "O"), 16, "dev.txt")
    assert said.startswith("dev.txt, sentence 2: tag 'I-NP'")


def test_rows_too_short_for_a_word_are_refused(small_tokenizer):
    assert "at least 3" in refusal(pieces, CHUNKED, small_tokenizer, TAGS, 2, "dev.txt")


def test_logits_of_other_rows_are_refused(small_tokenizer):
    made = pieces(CHUNKED, small_tokenizer, TAGS, 16, "here")
    logits = [np.zeros((len(row.tokens), 3)) for row in made.rows]
    with pytest.raises(ValueError, match="longer"):
        words_predicted(logits[:1], made.rows, made.places, TAGS)
    with pytest.raises(IndexError):
        words_predicted(logits[::-1], made.rows, made.places, TAGS)


def test_labels_are_sorted():
    assert labels_of(CHUNKED) == ("B-NP", "I-NP", "O")


# Files of columns.


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "{}", "{0}{0}"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_columns_between_tabs(tmp_path, end, last, mark):
    text = mark + end.join(["The\tB-NP", "old cat\tI-NP", "sees\tO", "", "Yes\tO"]) + last.format(end)
    assert read_columns(written(tmp_path, text)) == CHUNKED


def test_columns_between_spaces(tmp_path):
    text = "\n\n# NN B-NP\nno\u00a0break  NN   I-NP\n  \n\nb\u2028c NN O \n"
    expected = [Sentence(["#", "no\u00a0break"], ["B-NP", "I-NP"]), Sentence(["b\u2028c"], ["O"])]
    assert read_columns(written(tmp_path, text)) == expected
    assert labels_of(read_columns(written(tmp_path, text), tag=1)) == ("NN",)
    assert read_columns(written(tmp_path, text), word=1, tag=0)[1] == Sentence(["NN"], ["b\u2028c"])


@pytest.mark.parametrize("after", ["\n", ""])
def test_documents_only_part_sentences(tmp_path, after):
    text = f"-DOCSTART- -X- -X- O\n{after}EU NNP I-NP B-ORG\n{after}-DOCSTART- -X- O\n{after}No DT I-NP O\n"
    assert read_columns(written(tmp_path, text)) == [Sentence(["EU"], ["B-ORG"]), Sentence(["No"], ["O"])]


def test_conllu(tmp_path):
    def line(number: str, word: str, tag: str) -> str:
        return "\t".join([number, word, word.lower(), tag, *"______"])

    lines = ["# newdoc", "# text = I don't.\tReally", line("1", "I", "PRON"), line("2-3", "don't", "_")]
    lines += [line("2", "do", "AUX"), line("3", "n't", "PART"), line("3.1", "go", "VERB"), "", "# only a comment", ""]
    lines += ["# text = # 1", line("1", "#", "SYM"), line("2", "1", "NUM"), "", ""]
    read = read_columns(written(tmp_path, "\n".join(lines)), word=1, tag=3)
    assert read == [Sentence(["I", "do", "n't"], ["PRON", "AUX", "PART"]), Sentence(["#", "1"], ["SYM", "NUM"])]


def test_ranges_are_words_in_other_files(tmp_path):
    text = "3-4\tO\n# yes\tO\n5.1\tO\n"
    assert read_columns(written(tmp_path, text)) == [Sentence(["3-4", "# yes", "5.1"], ["O"] * 3)]


ANYTHING = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r")).filter(
    lambda word: not word.startswith("-DOCSTART-")  # such lines only part sentences
)


@given(st.lists(st.lists(st.tuples(ANYTHING, st.sampled_from("ci")), min_size=1), min_size=1))
@many
def test_whatever_the_words(tmp_path, sentences):
    text = "".join("".join(f"{word}\t{tag}\n" for word, tag in sentence) + "\n" for sentence in sentences)
    stripped = [[(word.strip(" "), tag) for word, tag in sentence] for sentence in sentences]
    if text[0] == "\ufeff":
        stripped[0][0] = (sentences[0][0][0][1:].strip(" "), stripped[0][0][1])
    read = read_columns(written(tmp_path, text))
    assert [list(zip(*sentence, strict=True)) for sentence in read] == stripped


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a b\nc d\n\ne f g\n", {}, ["file.txt, line 4", "expected 2", "not 3"]),
        ("a\tb\nlonely\n", {}, ["file.txt, line 2", "expected 2", "not 1"]),
        ("\na\tb\nc\td\te", {}, ["file.txt, line 3", "line 2", "not 3"]),
        ("a b\n", {"tag": 5}, ["file.txt", "column 5", "tags", "0 to 1"]),
        ("a b\n", {"word": -3}, ["file.txt", "column -3", "words"]),
        ("just\nwords\n", {}, ["file.txt", "both"]),
        ("a\tO\nb\t\n", {}, ["file.txt, line 2", "empty"]),
        ("", {}, ["file.txt", "no sentences"]),
        ("\n \n-DOCSTART- O\n\n", {}, ["file.txt", "no sentences"]),
        (b"a O\nna\xefve O\n", {}, ["file.txt, line 2", "UTF-8"]),
    ],
)
def test_bad_columns_are_refused(tmp_path, text, options, words):
    said = refusal(read_columns, written(tmp_path, text), **options)
    assert all(word in said for word in words), said


# JSON lines.


def test_json_lines(tmp_path):
    lines = [json.dumps({"id": i, **sentence._asdict()}) for i, sentence in enumerate(CHUNKED)]
    assert read_jsonl(written(tmp_path, "\r\n\r\n".join(lines))) == CHUNKED
    renamed = "\n".join(lines).replace('"words"', '"tokens"').replace('"tags"', '"ner"')
    assert read_jsonl(written(tmp_path, renamed), words="tokens", tags="ner") == CHUNKED


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"words": ["a", "b"], "tags": ["O"]}', ["line 2", "2 'words'", "1 'tags'"]),
        ('{"words": ["a"]}', ["line 2", "'tags'", "there is: words"]),
        ('{"words": "a", "tags": ["O"]}', ["line 2", "'words' must be a list of strings"]),
        ('{"words": ["a"], "tags": [3]}', ["line 2", "'tags' must be a list of strings", "[3]"]),
        ('{"words": ["\\ud800"], "tags": ["O"]}', ["line 2", "surrogate"]),
        ("[1]", ["line 2", "list, not an object"]),
        ("{", ["line 2", "not JSON"]),
        (b"\xff", ["line 2", "UTF-8"]),
    ],
)
def test_bad_json_is_refused(tmp_path, line, words):
    good = b'{"words": ["a"], "tags": ["O"]} \r\n'
    path = written(tmp_path, good + (line if isinstance(line, bytes) else line.encode()), "file.jsonl")
    said = refusal(read_jsonl, path)
    assert "file.jsonl" in said
    assert all(word in said for word in words), said


@pytest.mark.parametrize("text", ["", "\n", '{"words": [], "tags": []}'])
def test_json_without_words_is_refused(tmp_path, text):
    assert "no sentences" in refusal(read_jsonl, written(tmp_path, text))


# Chunks.

CHUNKS = st.lists(st.tuples(st.sampled_from(["NP", "VP", "a-b", ""]), st.integers(1, 4)), max_size=10)


def spelled(chunks: list[tuple[str, int]], scheme: str) -> list[str]:
    """Chunks, (name, words), one after the other in a scheme of tags; those without a name are outside."""
    tags, before = [], ""
    for name, length in chunks:
        if scheme == "IOB1":
            marks = ("B" if name == before else "I") + "I" * (length - 1)
        elif scheme == "IOB2":
            marks = "B" + "I" * (length - 1)
        else:
            marks = "S" if length == 1 else "B" + "I" * (length - 2) + "E"
        tags += [f"{mark}-{name}" if name else "O" for mark in marks]
        before = name
    return tags


@given(CHUNKS)
@many
def test_schemes_are_the_reference(chunks):
    bioes = spelled(chunks, "BIOES")
    for scheme in ("IOB1", "IOB2", "BIOES"):
        tags = spelled(chunks, scheme)
        assert to_bioes(tags) == bioes
        assert to_bio(tags) == spelled(chunks, "IOB2")
        assert get_entities(to_bioes(tags)) == get_entities(tags)


@given(st.lists(st.sampled_from(["O", *(f"{mark}-{name}" for mark in "BIES" for name in ("NP", "VP"))])))
@many
def test_chunks_stay_the_same_whatever_a_model_says(tags):
    assert get_entities(to_bio(tags)) == get_entities(to_bioes(tags)) == get_entities(tags)
    assert to_bioes(to_bio(tags)) == to_bioes(tags) == to_bioes(to_bioes(tags))


def test_chunks_need_no_names():
    assert to_bioes(["I", "I", "O", "B", "B"]) == ["B", "E", "O", "S", "S"]


@pytest.mark.parametrize("tag", ["NN", "IN", "c", "", "B_NP", "L-NP"])
def test_tags_that_name_no_chunk_are_refused(tag):
    for convert in (to_bio, to_bioes):
        assert repr(tag) in refusal(convert, ["O", tag])


def test_m2_marks_what_is_to_be_changed(tmp_path):
    path = tmp_path / "errors.m2"
    path.write_text(
        "S She have two cat .\n"
        "A 1 2|||R:VERB:SVA|||has|||REQUIRED|||-NONE-|||0\n"
        "A 3 4|||R:NOUN:NUM|||cats|||REQUIRED|||-NONE-|||0\n"
        "A 0 1|||R:OTHER|||He|||REQUIRED|||-NONE-|||1\n\n"
        "S I live in house\n"
        "A 3 3|||M:DET|||a|||REQUIRED|||-NONE-|||0\n"
        "A 4 4|||M:PUNCT|||.|||REQUIRED|||-NONE-|||0\n\n"
        "S All is well\n"
        "A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0\n"
    )
    found = read_m2(path)
    assert [" ".join(sentence.words) for sentence in found] == ["She have two cat .", "I live in house", "All is well"]
    assert ["".join(sentence.tags) for sentence in found] == ["cicic", "ccci", "ccc"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("A 1 9|||R|||x|||REQUIRED|||-NONE-|||0", "line 2: words 1 to 9 of a sentence of 2"),
        ("A one 2|||R|||x|||REQUIRED|||-NONE-|||0", "line 2: not a correction"),
        ("nonsense", "line 2: neither a sentence"),
    ],
)
def test_bad_m2_is_refused(line, sentence, tmp_path):
    path = tmp_path / "errors.m2"
    path.write_text(f"S a b\n{line}\n")
    with pytest.raises(ValueError, match=sentence):
        read_m2(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="no sentences"):
        read_m2(path)
