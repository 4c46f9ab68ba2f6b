"""Tasks of one's own: a table with one column of text or two, and one of labels or values."""

from functools import partial
from pathlib import Path

from elektron.data.tokenizer import Tokenizer
from elektron.model.task_heads import Kind
from elektron.tasks.tables import field, read_table
from elektron.tasks.task import Files, Outputs, Split, Task
from elektron.tasks.texts import Known, Text, counted, encoded, labelled, predicted

EPOCHS = 3


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
