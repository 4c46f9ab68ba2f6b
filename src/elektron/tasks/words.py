"""Tasks that give each word a tag: chunks, named entities, parts of speech, and which words are wrong."""

from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from elektron.data.tokenizer import Tokenizer
from elektron.tasks import metrics, tagging
from elektron.tasks.task import Files, Outputs, Split, Task

Counting = Literal["entities", "tokens", "errors", "either"]
CORRECT, INCORRECT = "c", "i"
"""The tags of words where errors are to be found."""
Columns = tuple[str, str] | tuple[int, int] | None
"""Of words and tags: fields of JSON, numbers of columns, or the usual ones."""


class Tagging(NamedTuple):
    """A task that gives each word a tag."""

    counting: Counting
    are_chunks: bool = False
    """Whether tags are learned as BIOES, whatever the files have."""
    length: int = 128
    epochs: int = 3


TAGGING = {
    "chunk": Tagging("entities", are_chunks=True, length=256),
    "ner": Tagging("entities"),
    "pos": Tagging("tokens"),
    "ged": Tagging("errors"),
}
"""CoNLL-2000 and -2003, universal parts of speech (CoNLL-U), and the detection of errors (FCE)."""


def tagging_task(
    name: str, protocol: Tagging, columns: Columns, files: Files, tokenizer: Tokenizer, longest: int
) -> Task:
    train, dev = (_sentences(path, protocol, columns) for path in (files.train, files.dev))
    labels = tagging.labels_of([*train, *dev])
    if protocol.counting == "errors" and set(labels) != {CORRECT, INCORRECT}:
        raise ValueError(
            f"{files.train}: words are to be {CORRECT} or {INCORRECT} (incorrect), not {', '.join(labels)}"
        )
    notes = []
    strange = set(labels) - set(tagging.labels_of(train))
    if strange:
        count = sum(tag in strange for sentence in dev for tag in sentence.tags)
        told = ", ".join(sorted(strange))
        notes.append(f"{count:,} words of {files.dev.name} have tags that {files.train.name} never shows: {told}")

    def split(path: Path, sentences: list[tagging.Sentence]) -> Split:
        pieces = tagging.pieces(sentences, tokenizer, labels, longest, str(path))
        if pieces.cut:
            notes.append(f"{pieces.cut:,} sentences of {path.name} go on in another row of {longest} tokens")
        return Split(pieces.rows, _Tagged(pieces, sentences, labels, protocol.are_chunks))

    tests = {}
    if files.test is not None:
        words = _sentences(files.test, protocol, columns, has_tags=False)
        unknown = [sentence._replace(tags=[labels[0]] * len(sentence.words)) for sentence in words]
        tests["test"] = split(files.test, unknown)
    counting = _counting(labels) if protocol.counting == "either" else protocol.counting
    return Task(
        name,
        "tagging",
        labels,
        split(files.train, train),
        {"dev": split(files.dev, dev)},
        tests,
        {"entities": "f1", "tokens": "accuracy", "errors": "f0.5"}[counting],
        partial(_count_tags, counting),
        _columns,
        tuple(notes),
    )


def _counting(labels: tuple[str, ...]) -> Counting:
    """Entities, if the tags are of such."""
    return "entities" if "O" in labels and all(label == "O" or label[1:2] == "-" for label in labels) else "tokens"


class _Tagged(NamedTuple):
    pieces: tagging.Pieces
    sentences: list[tagging.Sentence]
    labels: tuple[str, ...]
    are_chunks: bool

    def predicted(self, outputs: Outputs) -> list[list[str]]:
        return tagging.words_predicted(outputs, self.pieces.rows, self.pieces.places, self.labels)


def _sentences(path: Path, protocol: Tagging, columns: Columns, has_tags: bool = True) -> list[tagging.Sentence]:
    match columns:
        case (str(words), str(tags)):
            read = tagging.read_jsonl(path, words, tags if has_tags else None)
        case (int(word), int(tag)):
            read = tagging.read_columns(path, word, tag, has_tags)
        case _:
            read = tagging.read_columns(path, has_tags=has_tags)
    if not (protocol.are_chunks and has_tags):
        return read
    return [tagging.Sentence(sentence.words, tagging.to_bioes(sentence.tags)) for sentence in read]


def _count_tags(counting: Counting, known: _Tagged, outputs: Outputs) -> dict[str, float]:
    said, there = known.predicted(outputs), [sentence.tags for sentence in known.sentences]
    if counting == "entities":
        return metrics.entity_f1(said, there)._asdict()
    if counting == "tokens":
        return {"accuracy": metrics.token_accuracy(said, there)}
    flags = ([tag == INCORRECT for sentence in side for tag in sentence] for side in (said, there))
    precision, recall, f05 = metrics.detection(*flags)
    return {"f0.5": f05, "precision": precision, "recall": recall}


def _columns(known: _Tagged, outputs: Outputs) -> dict[str, str]:
    """Words and their tags (chunks as IOB2), a blank line after each sentence."""
    lines = []
    for sentence, tags in zip(known.sentences, known.predicted(outputs), strict=True):
        said = tagging.to_bio(tags) if known.are_chunks else tags
        lines += [f"{word}\t{tag}\n" for word, tag in zip(sentence.words, said, strict=True)] + ["\n"]
    return {".tsv": "".join(lines)}
