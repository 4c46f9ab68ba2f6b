"""GLUE (Wang et al., 2019, arXiv 1804.07461): nine tasks as a table, read from the folders of TSV files that the
benchmark is distributed as, and written as what its server takes."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

from elektron.data.tokenizer import Tokenizer
from elektron.model.task_heads import Kind
from elektron.tasks import hub
from elektron.tasks.tables import field, read_table
from elektron.tasks.task import Outputs, Split, Task
from elektron.tasks.texts import Known, Text, counted, encoded, labelled, predicted

LENGTH = 128
"""Of the paper's rows, in tokens."""
_BINARY = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")
_THREE = ("contradiction", "entailment", "neutral")
_DIAGNOSTIC = "diagnostic"
_COLA = ("source", "label", "mark", "sentence")
"""The columns of CoLA's files, which have no header but in the test set."""


class Protocol(NamedTuple):
    """What there is to know of a task."""

    folder: str
    texts: tuple[str, ...]
    """Columns of the first text and of the second, if there is one."""
    label: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    """The first is the one of the paper's tables."""
    epochs: int = 3
    swaps: bool = False
    """Whether pairs are learned in both orders, since theirs means nothing."""
    kind: Kind = "classification"
    dev: tuple[str, ...] = ("dev",)
    test: tuple[tuple[str, str], ...] = ()
    """Test files by their names in a submission; test.tsv by the folder's name if none are said."""
    header: tuple[str, ...] = ()
    skips: bool = False
    """Whether lines with another number of columns are left out: the public files of QQP have some."""


_PAIR = ("sentence1", "sentence2")
TASKS = {
    "cola": Protocol("CoLA", ("sentence",), "label", _BINARY, ("matthews",), header=_COLA),
    "sst": Protocol("SST-2", ("sentence",), "label", _BINARY, ("accuracy",)),
    "mrpc": Protocol("MRPC", ("#1 String", "#2 String"), "Quality", _BINARY, ("accuracy", "f1"), swaps=True),
    "sts": Protocol(
        *("STS-B", _PAIR, "score", ("score",), ("spearman", "pearson")),
        epochs=10,
        swaps=True,
        kind="regression",
    ),
    "qqp": Protocol(
        *("QQP", ("question1", "question2"), "is_duplicate", _BINARY, ("accuracy", "f1")),
        skips=True,
    ),
    "mnli": Protocol(
        *("MNLI", _PAIR, "gold_label", _THREE, ("accuracy",)),
        dev=("dev_matched", "dev_mismatched"),
        test=(("MNLI-m", "test_matched"), ("MNLI-mm", "test_mismatched"), ("AX", _DIAGNOSTIC)),
    ),
    "qnli": Protocol("QNLI", ("question", "sentence"), "label", _ENTAILED, ("accuracy",)),
    "rte": Protocol("RTE", _PAIR, "label", _ENTAILED, ("accuracy",), epochs=10),
    "wnli": Protocol("WNLI", _PAIR, "label", _BINARY, ("accuracy",)),
}
AVERAGED = ("cola", "sst", "mrpc", "sts", "qqp", "mnli", "qnli", "rte")
"""What the paper's average is over."""

FROM_MNLI = ("mrpc", "sts", "rte")
"""What gains by a network that has learned MNLI."""


def files(name: str, data: str) -> dict[str, Path]:
    """What holds the examples that a result comes from."""
    protocol = TASKS[name]
    wanted = ("train", *protocol.dev)
    if hub.is_hub(data):
        return hub.files(data, name, wanted)
    paths = {file: _path(data, protocol, file) for file in wanted}
    for path in paths.values():
        if not path.exists():
            raise ValueError(f"{name}: {path} is missing")
    return paths


def is_there(name: str, data: str) -> bool:
    return hub.is_hub(data) or (Path(data) / TASKS[name].folder).is_dir()


def open_task(name: str, data: str, tokenizer: Tokenizer, longest: int) -> Task:
    """A task from its folder inside `data`, or from the hub (hf:...); test sets may be missing."""
    protocol, notes = TASKS[name], []

    def split(file: str, is_test: bool = False) -> Split | None:
        texts = _texts(data, name, file, is_test, notes)
        if texts is None:
            return None
        if protocol.swaps and file == "train":
            texts += [Text(text.id, text.second or "", text.first, text.label) for text in texts]
        found, cut = encoded(texts, tokenizer, protocol.kind, protocol.labels, longest, f"{name}'s {file}")
        if cut:
            notes.append(f"{cut:,} of {len(texts):,} examples of {file} are cut to {longest} tokens")
        return found

    def needed(file: str) -> Split:
        found = split(file)
        if found is None:
            raise ValueError(f"{name}: {_path(data, protocol, file)} is missing")
        return found

    tests = {said: split(file, is_test=True) for said, file in protocol.test or ((protocol.folder, "test"),)}
    return Task(
        name,
        protocol.kind,
        protocol.labels,
        needed("train"),
        {file: needed(file) for file in protocol.dev},
        {said: found for said, found in tests.items() if found},
        protocol.metrics[0],
        counted(protocol.kind, protocol.metrics),
        partial(_submission, protocol),
        tuple(notes),
    )


def _path(data: str, protocol: Protocol, file: str) -> Path:
    """The diagnostic set has a folder of its own, unless somebody put it beside MNLI."""
    path = Path(data) / protocol.folder / f"{file}.tsv"
    apart = Path(data) / file / f"{file}.tsv"
    return apart if file == _DIAGNOSTIC and not path.exists() else path


def _texts(data: str, name: str, file: str, is_test: bool, notes: list[str]) -> list[Text] | None:
    """The examples of a file; None where it is not there."""
    protocol = TASKS[name]
    if hub.is_hub(data):
        return hub.texts(data, name, file, () if is_test else protocol.labels)
    path = _path(data, protocol, file)
    if not path.exists():
        return None
    skipped: list[str] = []
    texts = []
    may_skip = protocol.skips and not is_test  # or answers would belong to other lines
    lines = read_table(path, () if is_test else protocol.header, skipped if may_skip else None)
    for number, line in enumerate(lines):
        first, *second = (field(line, column) for column in protocol.texts)
        label = None if is_test else field(line, protocol.label)
        texts.append(Text(str(line.fields.get("index", number)), first, second[0] if second else None, label))
    if not texts:
        raise ValueError(f"{path}: no examples in it")
    if skipped:
        notes.append(f"{len(skipped):,} lines with another number of columns are left out ({skipped[0]}, ...)")
    return texts


def _submission(protocol: Protocol, known: Known, outputs: Outputs) -> dict[str, str]:
    found = predicted(outputs, protocol.kind)
    if protocol.kind == "regression":
        said = [f"{value:.3f}" for value in found.clip(0, 5)]
    else:
        said = [protocol.labels[number] for number in found]
    return labelled(known, said)
