"""GLUE as Hugging Face's `datasets` has it: `hf:nyu-mll/glue`, or `hf:FOLDER` with the same configs and splits."""

from pathlib import Path
from typing import Any

from elektron.data.corpus import HUB
from elektron.tasks.texts import Text

_CONFIGS = {"sst": "sst2", "sts": "stsb"}
"""Where it has another name for a task."""
_PAIR = ("sentence1", "sentence2")
_TEXTS = {
    "cola": ("sentence",),
    "sst": ("sentence",),
    "qqp": ("question1", "question2"),
    "mnli": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
}
"""Its columns of texts, where they are not those of `_PAIR`."""


def is_hub(data: str) -> bool:
    return data.startswith(HUB)


def texts(data: str, name: str, file: str, labels: tuple[str, ...]) -> list[Text] | None:
    """The examples that GLUE has in a file of that name, or None where there are none; `labels` are those of the task,
    none for a test set."""
    rows = _split(data, name, file)
    if rows is None:
        return None
    columns = _TEXTS.get(name, _PAIR)
    missing = [column for column in columns if column not in rows.column_names]
    if missing:
        raise ValueError(f"{data}, {name}: no column {missing[0]!r}; there are {', '.join(rows.column_names)}")
    names = getattr(rows.features.get("label"), "names", None)
    found = []
    for number, row in enumerate(rows):
        first, *second = (row[column] for column in columns)
        label = _label(row["label"], names, labels) if labels else None
        found.append(Text(str(row.get("idx", number)), first, second[0] if second else None, label))
    return found


def files(data: str, name: str, wanted: tuple[str, ...]) -> dict[str, Path]:
    """Where the examples lie on disk."""
    splits = {file: _split(data, name, file) for file in wanted}
    return {
        f"{file} {number}": Path(part["filename"])
        for file, rows in splits.items()
        if rows is not None
        for number, part in enumerate(rows.cache_files)
    }


def _label(value: float, names: list[str] | None, labels: tuple[str, ...]) -> str:
    """GLUE's own label for what is a number here."""
    if value == -1 and names is not None:
        raise ValueError("an example to learn from has the label -1, which test sets have")
    if names is not None and names[int(value)] in labels:
        return names[int(value)]
    return str(value)


def _split(data: str, name: str, file: str) -> Any:  # noqa: ANN401  a datasets.Dataset
    try:
        from datasets import get_dataset_split_names, load_dataset
    except ImportError as error:
        raise ValueError(f"{data}: reading it needs `pip install 'elektron[hf]'`") from error
    config, split = ("ax", "test") if file == "diagnostic" else (_CONFIGS.get(name, name), file)
    split = split.replace("dev", "validation")
    source = data.removeprefix(HUB)
    try:
        there = get_dataset_split_names(source, config)
    except (FileNotFoundError, ValueError) as error:
        if config == "ax":
            return None
        raise ValueError(f"{data}: no dataset with a config {config!r} ({error})") from error
    return load_dataset(source, config, split=split) if split in there else None
