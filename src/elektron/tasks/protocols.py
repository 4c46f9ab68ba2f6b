"""Tasks from files, by name: questions about texts, tags of words, and whatever a table of one's own holds. GLUE's are
in glue.py."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from elektron.data.tokenizer import Tokenizer
from elektron.model.task_heads import Kind
from elektron.tasks import glue, metrics, squad, tagging
from elektron.tasks.tables import field, read_table
from elektron.tasks.task import Outputs, Split, Task
from elektron.tasks.texts import Known, Text, counted, encoded, labelled, predicted

OWN = "own"
_OWN_EPOCHS = 3
Counting = Literal["entities", "tokens", "errors", "either"]
_FILES = ("train", "dev", "test")
_SUFFIXES = (".txt", ".tsv", ".conll", ".conllu")
_JOINT_THRESHOLD = -2.75
_CORRECT, _ERROR = "c", "i"
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


class Reading(NamedTuple):
    """A task that answers questions about a text."""

    train: str
    dev: str
    can_be_unanswerable: bool
    length: int = 512
    epochs: int = 2


READING = {
    "squad": Reading("train-v1.1.json", "dev-v1.1.json", can_be_unanswerable=False),
    "squad2": Reading("train-v2.0.json", "dev-v2.0.json", can_be_unanswerable=True),
    "mrqa": Reading("train.jsonl.gz", "dev.jsonl.gz", can_be_unanswerable=False),
}


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """What is to be learned, and where from."""

    task: str = "glue"
    """What is to be learned."""
    data: str = "glue"
    """GLUE's folder (CoLA/train.tsv and so on inside) or hf:nyu-mll/glue; SQuAD's (train-v1.1.json ...); for tags one
    with train.txt and dev.txt in columns."""
    train: str = ""
    """The file to learn from, where it is not in --data."""
    dev: str = ""
    """The file to be asked about."""
    test: str = ""
    """A file to answer without knowing the labels."""
    text: str = "text"
    """Of one's own tables the column of the text, or the two of a pair: a,b; of tagging the field of the words."""
    label: str = "label"
    """The column of the labels, of the values, or of the tags."""
    kind: Literal["classification", "regression", "tagging"] = "classification"
    """What one's own labels are: classes, numbers, or lists of tags (.jsonl)."""
    columns: str = ""
    """Of files in columns those of words and tags, counted from 0: 0,-1 if empty, and 1,3 for CoNLL-U."""

    @property
    def texts(self) -> tuple[str, ...]:
        names = tuple(name.strip() for name in self.text.split(","))
        if not 1 <= len(names) <= 2 or not all(names):
            raise ValueError(f"--text names one column, or the two of a pair: not {self.text!r}")
        return names

    @property
    def tagged_columns(self) -> tuple[int, int] | None:
        if not self.columns:
            return None
        try:
            word, tag = map(int, self.columns.split(","))
        except ValueError:
            raise ValueError(f"--columns names two by their numbers, such as 0,-1: not {self.columns!r}") from None
        return word, tag


class Files(NamedTuple):
    """Where the examples are; `test` may be missing."""

    train: Path
    dev: Path
    test: Path | None

    def all(self) -> dict[str, Path]:
        """By what they are for."""
        return {name: path for name, path in self._asdict().items() if path is not None}


class Plan(NamedTuple):
    """How a task is opened, once its files have been looked at."""

    files: dict[str, Path]
    """By what they are for."""
    length: int
    """The paper's."""
    epochs: float
    open: Callable[[Tokenizer, int], Task]
    """With a tokenizer and the length of the longest row."""


def names_of(source: SourceConfig) -> list[str]:
    """The tasks that are asked for: one, or those of GLUE that are there."""
    known = [*glue.TASKS, *TAGGING, *READING, OWN]
    if source.task in known:
        return [source.task]
    if source.task != "glue":
        raise ValueError(f"unknown task {source.task!r}; known are glue, {', '.join(known)}")
    names = [name for name in glue.TASKS if glue.is_there(name, source.data)]
    if not names:
        folders = ", ".join(protocol.folder for protocol in glue.TASKS.values())
        raise ValueError(f"{source.data} has none of GLUE's folders: {folders}")
    return names


def plan_of(name: str, source: SourceConfig) -> Plan:
    if name in glue.TASKS:
        if source.train or source.dev or source.test:
            raise ValueError(f"{name} is read from GLUE's folder, --data: --train, --dev and --test are not for it")
        open_glue = partial(glue.open_task, name, source.data)
        return Plan(glue.files(name, source.data), glue.LENGTH, glue.TASKS[name].epochs, open_glue)
    files = _files(name, source)
    if name in READING:
        asked = READING[name]
        return Plan(files.all(), asked.length, asked.epochs, partial(reading_task, name, asked, files))
    if name == OWN and source.kind != "tagging":
        open_own = partial(own_task, source.kind, files, source.texts, source.label)
        return Plan(files.all(), glue.LENGTH, _OWN_EPOCHS, open_own)
    tagged = TAGGING[name] if name in TAGGING else Tagging("either")
    columns = (source.text, source.label) if name == OWN else source.tagged_columns
    return Plan(files.all(), tagged.length, tagged.epochs, partial(tagging_task, name, tagged, columns, files))


def _files(name: str, source: SourceConfig) -> Files:
    """Those that are named, and for the others those that the task has in its folder."""
    if name == OWN and not (source.train and source.dev):
        raise ValueError("a task of your own needs --train and --dev: two files")
    files = files_of(name, Path(source.data))
    named = {split: Path(path) for split in _FILES if (path := getattr(source, split))}
    files = files._replace(**named)
    for split, path in files.all().items():
        if not path.is_file():
            raise ValueError(f"{path} is missing: say --{split} FILE, or --data FOLDER")
    return files


def files_of(name: str, data: Path) -> Files:
    """The files of a task of this page in its folder, if they are there."""
    if name in READING:
        return Files(data / READING[name].train, data / READING[name].dev, None)
    train, dev, test = (_file(data, split) for split in _FILES)
    return Files(train, dev, test if test.exists() else None)


def _file(data: Path, split: str) -> Path:
    paths = [data / f"{split}{suffix}" for suffix in _SUFFIXES]
    return next((path for path in paths if path.exists()), paths[0])


def tagging_task(
    name: str, protocol: Tagging, columns: Columns, files: Files, tokenizer: Tokenizer, longest: int
) -> Task:
    train, dev = (_sentences(path, protocol, columns) for path in (files.train, files.dev))
    labels = tagging.labels_of([*train, *dev])
    if protocol.counting == "errors" and set(labels) != {_CORRECT, _ERROR}:
        raise ValueError(f"{files.train}: words are to be {_CORRECT} or {_ERROR} (incorrect), not {', '.join(labels)}")
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
    flags = ([tag == _ERROR for sentence in side for tag in sentence] for side in (said, there))
    precision, recall, f05 = metrics.detection(*flags)
    return {"f0.5": f05, "precision": precision, "recall": recall}


def _columns(known: _Tagged, outputs: Outputs) -> dict[str, str]:
    """Words and their tags (chunks as IOB2), a blank line after each sentence."""
    lines = []
    for sentence, tags in zip(known.sentences, known.predicted(outputs), strict=True):
        said = tagging.to_bio(tags) if known.are_chunks else tags
        lines += [f"{word}\t{tag}\n" for word, tag in zip(sentence.words, said, strict=True)] + ["\n"]
    return {".tsv": "".join(lines)}


def reading_task(name: str, protocol: Reading, files: Files, tokenizer: Tokenizer, longest: int) -> Task:
    notes: list[str] = []

    def asked(path: Path) -> tuple[_Asked, squad.Windows]:
        questions = squad.read_squad(path) if path.suffix == ".json" else squad.read_mrqa(path)
        if not questions:
            raise ValueError(f"{path}: no questions in it")
        windows = squad.windows_of(questions, tokenizer, longest)
        more, lost = len(windows.windows) - len(questions), len(windows.lost)
        if more:
            notes.append(f"{more:,} more rows than questions of {path.name}: long contexts are read through windows")
        if lost:
            done = "left out" if path == files.train else "asked all the same"
            notes.append(f"{lost:,} questions of {path.name} whose answer is not in their context are {done}")
        return _Asked(questions, windows.windows), windows

    def split(path: Path) -> Split:
        known, _ = asked(path)
        return Split([window.row for window in known.windows], known)

    train = squad.trainable(asked(files.train)[1])
    if not train:
        raise ValueError(f"{files.train}: not one of its questions can be learned from")
    return Task(
        name,
        "span",
        ("start", "end"),
        Split([window.row for window in train], None),
        {"dev": split(files.dev)},
        {} if files.test is None else {"test": split(files.test)},
        "exact",
        partial(_count_answers, protocol.can_be_unanswerable),
        partial(_answered, protocol.can_be_unanswerable),
        tuple(notes),
    )


class _Asked(NamedTuple):
    questions: list[squad.Question]
    windows: list[squad.Window]


def _threshold(can_be_unanswerable: bool, outputs: Outputs) -> float | None:
    """Beyond which there is no answer: even chances, or what the original has for its head's doubt."""
    if not can_be_unanswerable:
        return None
    return _JOINT_THRESHOLD if outputs[0].shape[1] == 3 else 0.0


def _count_answers(can_be_unanswerable: bool, known: _Asked, outputs: Outputs) -> dict[str, float]:
    answers = squad.answers_of(outputs, known.windows, known.questions)
    golds = {question.id: question.answers for question in known.questions}
    scores = metrics.squad_scores(squad.predictions(answers, _threshold(can_be_unanswerable, outputs)), golds)
    if can_be_unanswerable:
        doubts = {answer.id: answer.no_answer for answer in answers}
        scores |= metrics.best_threshold(squad.predictions(answers, None), golds, doubts)._asdict()
    return scores


def _answered(can_be_unanswerable: bool, known: _Asked, outputs: Outputs) -> dict[str, str]:
    """What SQuAD's server and its script take, and the best candidates of each question."""
    answers = squad.answers_of(outputs, known.windows, known.questions)
    said = {
        ".json": squad.predictions(answers, _threshold(can_be_unanswerable, outputs)),
        "-null-odds.json": {answer.id: answer.no_answer for answer in answers},
        "-nbest.json": {answer.id: [candidate._asdict() for candidate in answer.best] for answer in answers},
    }
    return {end: json.dumps(content, ensure_ascii=False, indent=0) + "\n" for end, content in said.items()}


def own_task(
    kind: Kind, files: Files, columns: tuple[str, ...], label: str, tokenizer: Tokenizer, longest: int
) -> Task:
    """A table of one's own: one column of text or two, and one of labels or values."""
    train = _texts(files.train, columns, label)
    labels = ("score",) if kind == "regression" else tuple(sorted({str(text.label) for text in train}))
    notes = []

    def split(path: Path, texts: list[Text]) -> Split:
        found, cut = encoded(texts, tokenizer, kind, labels, longest, str(path))
        if cut:
            notes.append(f"{cut:,} of {len(texts):,} examples of {path.name} are cut to {longest} tokens")
        return found

    names = ("spearman", "pearson") if kind == "regression" else ("accuracy", *(("f1",) if len(labels) == 2 else ()))
    return Task(
        "own",
        kind,
        labels,
        split(files.train, train),
        {"dev": split(files.dev, _texts(files.dev, columns, label))},
        {} if files.test is None else {"test": split(files.test, _texts(files.test, columns, ""))},
        names[0],
        counted(kind, names),
        partial(_labelled, kind, labels),
        tuple(notes),
    )


def _texts(path: Path, columns: tuple[str, ...], label: str) -> list[Text]:
    texts = []
    for number, line in enumerate(read_table(path)):
        first, *second = (field(line, column) for column in columns)
        said = field(line, label) if label else None
        texts.append(Text(str(number), first, second[0] if second else None, said))
    if not texts:
        raise ValueError(f"{path}: no examples in it")
    return texts


def _labelled(kind: Kind, labels: tuple[str, ...], known: Known, outputs: Outputs) -> dict[str, str]:
    found = predicted(outputs, kind)
    return labelled(known, list(map(str, found)) if kind == "regression" else [labels[number] for number in found])
