"""Every task by its name, and from which files: GLUE's (glue.py), questions about texts (reading.py), tags of words
(words.py), and whatever a table of one's own holds (own.py)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from elektron.data.tokenizer import Tokenizer
from elektron.tasks import glue, own
from elektron.tasks.reading import READING, reading_task
from elektron.tasks.task import Files, Task
from elektron.tasks.words import TAGGING, Tagging, tagging_task

OWN = "own"
_FILES = ("train", "dev", "test")
_SUFFIXES = (".txt", ".tsv", ".conll", ".conllu")


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
    if source.task != "glue":
        return [source.task]
    names = [name for name in glue.TASKS if glue.is_there(name, source.data)]
    if not names:
        folders = ", ".join(protocol.folder for protocol in glue.TASKS.values())
        raise ValueError(f"{source.data} has none of GLUE's folders: {folders}")
    return names


def plan_of(name: str, source: SourceConfig) -> Plan:
    known = [*glue.TASKS, *TAGGING, *READING, OWN]
    if name not in known:
        raise ValueError(f"unknown task {name!r}; known are glue, {', '.join(known)}")
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
        open_own = partial(own.own_task, source.kind, files, source.texts, source.label)
        return Plan(files.all(), glue.LENGTH, own.EPOCHS, open_own)
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
