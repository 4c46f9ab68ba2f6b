"""Tagging: a label for every word, as in chunking, named entities, parts of speech and the detection of errors.

Files of sentences are UTF-8 and come in two forms:

- Columns (CoNLL): a word a line, a blank line between sentences. A line with tabs has its columns between them, so that
  words may hold spaces; any other has them between spaces. `-DOCSTART-` lines do no more than part sentences.
  In CoNLL-U (ten columns, the first a number) comments, ranges of words (3-4) and empty nodes (5.1) are passed over;
  the words are column 1 there, their parts of speech columns 3 and 4.
- JSON lines: an object a line, with a list of words and a list of as many tags.
- M2 (Dahlmeier and Ng, 2012): sentences `S word word ...` with their corrections, `A 1 2|||type|||other|||...`. A word
  that is to be changed is incorrect, and so is the one before which another is missing.

The label of a word is that of its first token. Chunks may be written in IOB1, IOB2 (here: BIO) or BIOES.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain, dropwhile, groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elektron.data.examples import IGNORED, Row
from elektron.data.tokenizer import Specials, Tokenizer
from elektron.tasks.tables import Line, lines, objects, whole

_DOCUMENT = "-DOCSTART-"
_USUAL, _USUAL_CONLLU = (0, -1), (1, 3)
"""Columns of words and tags."""
_CONLLU = re.compile(r"\d+([-.]\d+)?(\t[^\t]*){9}")
_CONLLU_OTHER = re.compile(r"\d+[-.]\d+\t")
_CHUNK_TAG = re.compile(r"O|[BIES](-.*)?")

_Line = tuple[int, str]  # its number in the file, from 1


class Sentence(NamedTuple):
    """Words and the tag of each."""

    words: list[str]
    tags: list[str]


class Pieces(NamedTuple):
    """Sentences as rows of tokens."""

    rows: list[Row]
    places: list[range]  # the rows that each sentence became, none if it has no words
    cut: int  # sentences of more than one row


def read_columns(path: Path, word: int | None = None, tag: int | None = None, has_tags: bool = True) -> list[Sentence]:
    """The sentences of a file of columns, from those numbered `word` and `tag`: 0 is the first, -1 the last. If none
    are said, these two, and in CoNLL-U those of words and their universal parts of speech. Tags are empty where a file
    is not to have any."""
    blocks = _blocks(path)
    usual = _USUAL
    if _is_conllu(blocks):
        blocks, usual = [_conllu_words(block) for block in blocks], _USUAL_CONLLU
    word, tag = usual[0] if word is None else word, usual[1] if tag is None else tag
    tables = [[(number, _columns(line)) for number, line in block] for block in blocks if block]
    _check_columns(path, list(chain.from_iterable(tables)), word, tag if has_tags else None)
    return [
        Sentence([line[word] for _, line in table], [line[tag] if has_tags else "" for _, line in table])
        for table in tables
    ]


def _blocks(path: Path) -> list[list[_Line]]:
    """The lines between blank lines."""
    parted = groupby(lines(path), lambda line: bool(line[1].strip()) and not line[1].startswith(_DOCUMENT))
    return [list(block) for is_sentence, block in parted if is_sentence]


def _is_conllu(blocks: list[list[_Line]]) -> bool:
    first = next((line for _, line in chain.from_iterable(blocks) if not line.startswith("#")), "")
    return _CONLLU.fullmatch(first) is not None


def _conllu_words(block: list[_Line]) -> list[_Line]:
    lines = dropwhile(lambda line: line[1].startswith("#"), block)
    return [line for line in lines if not _CONLLU_OTHER.match(line[1])]


def _columns(line: str) -> list[str]:
    if "\t" in line:
        return [column.strip(" ") for column in line.split("\t")]
    return [column for column in line.split(" ") if column]  # not split(): words may hold a no-break space


def _check_columns(path: Path, lines: list[tuple[int, list[str]]], word: int, tag: int | None) -> None:
    if not lines:
        raise ValueError(f"{path}: no sentences; expected a word and its tag a line, a blank line between sentences")
    first, width = lines[0][0], len(lines[0][1])
    for what, column in (("words", word), ("tags", tag)):
        if column is not None and not -width <= column < width:
            raise ValueError(f"{path}: no column {column} for the {what}: line {first} has {width}, 0 to {width - 1}")
    if tag is not None and word % width == tag % width:
        raise ValueError(f"{path}: words and tags cannot both be column {word % width}; line {first} has {width}")
    for number, columns in lines:
        if len(columns) != width:
            raise ValueError(f"{path}, line {number}: expected {width} columns as in line {first}, not {len(columns)}")
        if tag is not None and not columns[tag]:
            raise ValueError(f"{path}, line {number}: the tag, column {tag} of {width}, is empty")


def read_jsonl(path: Path, words: str = "words", tags: str | None = "tags") -> list[Sentence]:
    """The sentences of a file of JSON objects, whose fields `words` and `tags` are read; tags are empty if None."""
    sentences = [_sentence(line, words, tags) for line in objects(path)]
    if not any(sentence.words for sentence in sentences):
        fields = repr(words) if tags is None else f"{words!r} and {tags!r}"
        raise ValueError(f"{path}: no sentences; expected a JSON object with {fields} a line")
    return sentences


def _sentence(line: Line, words: str, tags: str | None) -> Sentence:
    if tags is None:
        found = _strings(line.fields, words, line.where)
        return Sentence(found, [""] * len(found))
    made = Sentence(_strings(line.fields, words, line.where), _strings(line.fields, tags, line.where))
    if len(made.words) != len(made.tags):
        counts = f"{len(made.words)} {words!r} but {len(made.tags)} {tags!r}"
        raise ValueError(f"{line.where}: {counts}; each word has one tag")
    return made


def _strings(record: dict[str, Any], field: str, where: str) -> list[str]:
    if field not in record:
        raise ValueError(f"{where}: nothing under {field!r} (there is: {', '.join(record)})")
    values = record[field]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{where}: {field!r} must be a list of strings, not {json.dumps(values)[:60]}")
    return [whole(value, f"{where}: {field!r}") for value in values]


def read_m2(path: Path, correct: str = "c", incorrect: str = "i") -> list[Sentence]:
    """Sentences with their errors, by the first of several annotators."""
    found: list[Sentence] = []
    for number, line in lines(path):
        kind, _, rest = line.partition(" ")
        if kind == "S":
            words = rest.split()
            found.append(Sentence(words, [correct] * len(words)))
        elif kind == "A" and found:
            _mark(found[-1], rest, incorrect, f"{path}, line {number}")
        elif line.strip():
            raise ValueError(
                f"{path}, line {number}: neither a sentence, S ..., nor a correction, A ...: {line[:40]!r}"
            )
    if not any(sentence.words for sentence in found):
        raise ValueError(f"{path}: no sentences; expected lines S ... with corrections A ... below them")
    return found


def _mark(sentence: Sentence, correction: str, incorrect: str, where: str) -> None:
    span, *fields = correction.split("|||")
    try:
        start, stop = map(int, span.split())
        annotator = int(fields[-1])
    except (ValueError, IndexError) as error:
        raise ValueError(f"{where}: not a correction 'A START STOP|||TYPE|||...|||ANNOTATOR' ({error})") from error
    if annotator or start < 0:  # noop
        return
    if not start <= stop <= len(sentence.words):
        raise ValueError(f"{where}: words {start} to {stop} of a sentence of {len(sentence.words)}")
    for word in range(start, max(stop, min(start + 1, len(sentence.words)))):
        sentence.tags[word] = incorrect


def labels_of(sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """Every tag there is, sorted: the classes of a model."""
    return tuple(sorted({tag for sentence in sentences for tag in sentence.tags}))


def to_bioes(tags: Sequence[str]) -> list[str]:
    """IOB1, IOB2 or BIOES as BIOES: B, I and E begin, continue and end a chunk, S is a chunk of one word."""
    on = [*_goes_on(tags), False]
    return [tag if tag == "O" else "SBEI"[2 * on[i] + on[i + 1]] + tag[1:] for i, tag in enumerate(tags)]


def to_bio(tags: Sequence[str]) -> list[str]:
    """BIOES as IOB2, of the same chunks; also where a model's tags do not fit together."""
    return [tag if tag == "O" else "BI"[on] + tag[1:] for tag, on in zip(tags, _goes_on(tags), strict=True)]


def _goes_on(tags: Sequence[str]) -> list[bool]:
    """Whether each word is in one chunk with the word before it."""
    strange = next((tag for tag in tags if not _CHUNK_TAG.fullmatch(tag)), None)
    if strange is not None:
        raise ValueError(f"tag {strange!r} names no chunk: expected O, or B-, I-, E- or S- before a name")
    return [a[0] in "BI" and b[0] in "IE" and a[1:] == b[1:] for a, b in pairwise(["O", *tags])]


def pieces(
    sentences: Sequence[Sentence], tokenizer: Tokenizer, labels: Sequence[str], longest: int, source: str
) -> Pieces:
    """Sentences as rows of at most `longest` tokens; one that is longer continues in another row at a word's beginning.

    `source` is where the sentences are from, for complaints.
    """
    room = longest - 2  # for [CLS] and [SEP]
    if room < 1:
        raise ValueError(f"rows of {longest} tokens have no room for words: at least 3")
    tokens, numbers = _tokens_of_words(sentences, tokenizer, room), {label: i for i, label in enumerate(labels)}
    rows, places = [], []
    for count, sentence in enumerate(sentences, 1):
        unknown = next((tag for tag in sentence.tags if tag not in numbers), None)
        if unknown is not None:
            raise ValueError(f"{source}, sentence {count}: tag {unknown!r} is none of the {len(labels)} known labels")
        parts, classes = [tokens[word] for word in sentence.words], [numbers[tag] for tag in sentence.tags]
        made = [_row(parts[s], classes[s], tokenizer.specials) for s in _slices([len(p) for p in parts], room)]
        places.append(range(len(rows), len(rows) + len(made)))
        rows += made
    return Pieces(rows, places, sum(len(place) > 1 for place in places))


def _tokens_of_words(sentences: Sequence[Sentence], tokenizer: Tokenizer, room: int) -> dict[str, np.ndarray]:
    """The tokens of every word, at least one and at most `room`."""
    words = list(dict.fromkeys(word for sentence in sentences for word in sentence.words))
    ids, lengths = tokenizer.encode([f" {word}" for word in words])  # byte-level tokenizers begin words with a space
    parts = np.split(ids.astype(np.int64), np.cumsum(lengths))[:-1]
    unknown = np.array([tokenizer.specials.unk])
    return {word: part[:room] if len(part) else unknown for word, part in zip(words, parts, strict=True)}


def _slices(lengths: Sequence[int], room: int) -> Iterator[slice]:
    """As many words as there is room for, again and again."""
    first, taken = 0, 0
    for i, length in enumerate(lengths):
        if taken + length > room:
            yield slice(first, i)
            first, taken = i, 0
        taken += length
    if lengths:
        yield slice(first, len(lengths))


def _row(parts: Sequence[np.ndarray], classes: Sequence[int], specials: Specials) -> Row:
    """`[CLS] words [SEP]`, in one segment."""
    tokens = np.concatenate([[specials.cls], *parts, [specials.sep]])
    target = np.full(len(tokens), IGNORED, np.int64)
    target[np.cumsum([1, *(len(part) for part in parts[:-1])])] = classes
    return Row(tokens, len(tokens), target)


def words_predicted(
    logits: Sequence[np.ndarray], rows: Sequence[Row], places: Sequence[range], labels: Sequence[str]
) -> list[list[str]]:
    """The tags of every sentence's words: `logits` are of the rows, [T, C] each."""
    classes = [scores[row.target != IGNORED].argmax(-1) for scores, row in zip(logits, rows, strict=True)]
    return [[labels[int(c)] for row in place for c in classes[row]] for place in places]
