"""GLUE's files in their exact layouts, written here."""

from pathlib import Path

import numpy as np
import pytest

from elektron.data.tokenizer import Tokenizer
from elektron.tasks import glue
from elektron.tasks.task import Task

HEADERS = {
    "cola": None,
    "sst": "sentence\tlabel",
    "mrpc": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "sts": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "mnli": "index\tpromptID\tpairID\tgenre\ts1_bp\ts2_bp\ts1_p\ts2_p\tsentence1\tsentence2\tlabel1\tgold_label",
    "qnli": "index\tquestion\tsentence\tlabel",
    "rte": "index\tsentence1\tsentence2\tlabel",
    "wnli": "index\tsentence1\tsentence2\tlabel",
}
TEST_HEADERS = {
    "cola": "index\tsentence",
    "sst": "index\tsentence",
    "mrpc": "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "sts": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
    "qqp": "id\tquestion1\tquestion2",
    "mnli": "index\tpromptID\tpairID\tgenre\ts1_bp\ts2_bp\ts1_parse\ts2_parse\tsentence1\tsentence2",
    "qnli": "index\tquestion\tsentence",
    "rte": "index\tsentence1\tsentence2",
    "wnli": "index\tsentence1\tsentence2",
}
SECONDS = {
    "mrpc": "#2 String",
    "qqp": "question2",
    "qnli": "sentence",
    **dict.fromkeys(("sts", "mnli", "rte", "wnli"), "sentence2"),
}
FIRSTS = {
    "cola": "sentence",
    "sst": "sentence",
    "mrpc": "#1 String",
    "qqp": "question1",
    "qnli": "question",
    **dict.fromkeys(("sts", "mnli", "rte", "wnli"), "sentence1"),
}


def line(name: str, header: str, number: int, label: str) -> str:
    protocol = glue.TASKS[name]
    cells = dict.fromkeys(header.lstrip("\ufeff").split("\t"), f"x{number}")
    cells["index"] = str(number)
    cells[FIRSTS[name]] = f'the "old cat {number}'
    if name in SECONDS:
        cells[SECONDS[name]] = f"a dog' {number} \u2028 sees"
    if protocol.label in cells:
        cells[protocol.label] = label
    return "\t".join(cells[column] for column in header.lstrip("\ufeff").split("\t"))


def write(folder: Path, name: str, file: str, labels: list[str], header: str | None, end: str = "\n") -> None:
    where = folder / glue.TASKS[name].folder
    where.mkdir(parents=True, exist_ok=True)
    columns = header or "source\tlabel\tmark\tsentence"
    lines = [line(name, columns, number, label) for number, label in enumerate(labels)]
    content = end.join([*([header] if header else []), *lines, ""])
    (where / f"{file}.tsv").write_bytes(content.encode())


def written(folder: Path, name: str, end: str = "\n") -> list[str]:
    protocol = glue.TASKS[name]
    labels = ["0.5", "5.000", "3", "2.2"] if name == "sts" else [*protocol.labels, *protocol.labels[:2]]
    for file in ("train", *protocol.dev):
        write(folder, name, file, labels, HEADERS[name], end)
    for _, file in protocol.test or (("", "test"),):
        header = "index\tsentence1\tsentence2" if file == "diagnostic" else TEST_HEADERS[name]
        write(folder, name, file, labels, header, end)
    return labels


def opened(folder: Path, name: str, tokenizer: Tokenizer, longest: int = 64) -> Task:
    return glue.open_task(name, str(folder), tokenizer, longest)


@pytest.mark.parametrize("name", glue.TASKS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_task_is_read(name, end, tmp_path, small_tokenizer):
    labels = written(tmp_path, name, end)
    task, protocol = opened(tmp_path, name, small_tokenizer), glue.TASKS[name]
    times = 2 if name in ("mrpc", "sts") else 1
    assert len(task.train.rows) == times * len(labels)
    for split in task.dev.values():
        expected = [float(label) for label in labels] if name == "sts" else [protocol.labels.index(x) for x in labels]
        assert split.known.targets.tolist() == expected
    first = small_tokenizer.encode(['the "old cat 0'])[0].tolist()
    second = small_tokenizer.encode(["a dog' 0 \u2028 sees"])[0].tolist() if name in SECONDS else []
    cls, sep = small_tokenizer.specials.cls, small_tokenizer.specials.sep
    row = next(iter(task.dev.values())).rows[0]
    assert row.tokens.tolist() == [cls, *first, sep, *second, *([sep] if second else [])]
    assert row.second == len(first) + 2
    if times == 2:
        swapped = task.train.rows[len(labels)]
        assert swapped.tokens.tolist() == [cls, *second, sep, *first, sep]
        assert swapped.target == task.train.rows[0].target


@pytest.mark.parametrize("name", glue.TASKS)
def test_submissions(name, tmp_path, small_tokenizer):
    written(tmp_path, name)
    task, protocol = opened(tmp_path, name, small_tokenizer), glue.TASKS[name]
    assert set(task.test) == ({"MNLI-m", "MNLI-mm", "AX"} if name == "mnli" else {protocol.folder})
    for split in task.test.values():
        count = len(split.rows)
        if name == "sts":
            outputs = [np.array([value]) for value in np.linspace(-1, 7, count)]
            expected = [f"{value:.3f}" for value in np.linspace(-1, 7, count).clip(0, 5)]
        else:
            outputs = list(np.eye(len(protocol.labels))[np.arange(count) % len(protocol.labels)])
            expected = [protocol.labels[i % len(protocol.labels)] for i in range(count)]
        lines = task.answers(split.known, outputs)[".tsv"].split("\n")
        assert lines == ["index\tprediction", *(f"{i}\t{label}" for i, label in enumerate(expected)), ""]


def test_metrics_are_of_the_development_set(tmp_path, small_tokenizer):
    written(tmp_path, "mrpc")
    task = opened(tmp_path, "mrpc", small_tokenizer)
    known = task.dev["dev"].known
    assert known.targets.tolist() == [0, 1, 0, 1]
    outputs = [np.array([0.0, 1.0])] * 4
    assert task.metrics(known, outputs) == {"accuracy": 0.5, "f1": pytest.approx(2 / 3)}
    assert task.metric == "accuracy"


def test_long_pairs_are_cut_and_counted(tmp_path, small_tokenizer):
    written(tmp_path, "rte")
    task = opened(tmp_path, "rte", small_tokenizer, longest=8)
    assert max(len(row.tokens) for row in task.train.rows) == 8
    assert "4 of 4 examples of train are cut to 8 tokens" in task.notes


def test_broken_lines_of_qqp_are_left_out_and_counted(tmp_path, small_tokenizer):
    written(tmp_path, "qqp")
    with open(tmp_path / "QQP" / "train.tsv", "a") as file:
        file.write("9\t9\t9\tonly one question\n")
    task = opened(tmp_path, "qqp", small_tokenizer)
    assert len(task.train.rows) == 4
    assert any("1 lines" in note and "line 6" in note for note in task.notes)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "rte",
            "index\tsentence1\tsentence2\tlabel\n0\ta\tb\n",
            r"train\.tsv, line 2: 3 columns, where the others have 4",
        ),
        (
            "rte",
            "index\tsentence1\tlabel\n0\ta\tentailment\n",
            "no column 'sentence2'; there are index, sentence1, label",
        ),
        ("rte", "index\tsentence1\tsentence2\tlabel\n", "no examples"),
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n", "example 1: unknown label 'maybe'"),
        ("sts", HEADERS["sts"] + "\n" + "\t".join(["x"] * 9 + ["much"]) + "\n", "'much' is not a number"),
        ("sts", HEADERS["sts"] + "\n" + "\t".join(["x"] * 9 + ["nan"]) + "\n", "not a finite number"),
    ],
)
def test_bad_files_are_named(name, content, message, tmp_path, small_tokenizer):
    written(tmp_path, name)
    (tmp_path / glue.TASKS[name].folder / "train.tsv").write_text(content)
    with pytest.raises(ValueError, match=message):
        opened(tmp_path, name, small_tokenizer)


def test_bytes_that_are_no_text(tmp_path, small_tokenizer):
    written(tmp_path, "sst")
    (tmp_path / "SST-2" / "train.tsv").write_bytes(b"sentence\tlabel\n\xff\xfe\t1\n")
    with pytest.raises(ValueError, match=r"train\.tsv, line 2: not UTF-8"):
        opened(tmp_path, "sst", small_tokenizer)


def test_lines_of_a_test_set_are_never_left_out(tmp_path, small_tokenizer):
    written(tmp_path, "qqp")
    with open(tmp_path / "QQP" / "test.tsv", "a") as file:
        file.write("9\tonly one question\n")
    with pytest.raises(ValueError, match=r"test\.tsv, line 6: 2 columns"):
        opened(tmp_path, "qqp", small_tokenizer)


def test_the_diagnostic_set_may_lie_apart(tmp_path, small_tokenizer):
    written(tmp_path, "mnli")
    (tmp_path / "diagnostic").mkdir()
    (tmp_path / "MNLI" / "diagnostic.tsv").rename(tmp_path / "diagnostic" / "diagnostic.tsv")
    assert "AX" in opened(tmp_path, "mnli", small_tokenizer).test


def test_a_missing_split(tmp_path, small_tokenizer):
    written(tmp_path, "mnli")
    (tmp_path / "MNLI" / "dev_mismatched.tsv").unlink()
    with pytest.raises(ValueError, match=r"dev_mismatched\.tsv is missing"):
        opened(tmp_path, "mnli", small_tokenizer)
    (tmp_path / "MNLI" / "test_matched.tsv").unlink()
    write(tmp_path, "mnli", "dev_mismatched", ["neutral"], HEADERS["mnli"])
    assert set(opened(tmp_path, "mnli", small_tokenizer).test) == {"MNLI-mm", "AX"}


@pytest.mark.parametrize("name", glue.TASKS)
def test_the_hub_s_glue_is_the_same(name, tmp_path, small_tokenizer):
    """As `datasets` has it: other columns, numbers for labels, other names of splits."""
    import datasets

    labels = written(tmp_path / "tsv", name)
    protocol, config = glue.TASKS[name], {"sst": "sst2", "sts": "stsb"}.get(name, name)
    columns = {"cola": ["sentence"], "sst": ["sentence"], "qqp": ["question1", "question2"]}
    columns |= {"qnli": ["question", "sentence"], "mnli": ["premise", "hypothesis"]}
    texts = columns.get(name, ["sentence1", "sentence2"])
    names = {"mnli": ["entailment", "neutral", "contradiction"], "qnli": [*protocol.labels], "rte": [*protocol.labels]}
    class_names = names.get(name, ["no", "yes"])
    kinds = {"label": datasets.Value("float32") if name == "sts" else datasets.ClassLabel(names=class_names)}
    kinds |= {column: datasets.Value("string") for column in texts} | {"idx": datasets.Value("int32")}
    numbers = [float(x) if name == "sts" else class_names.index(x) if x in class_names else int(x) for x in labels]
    rows = {"label": numbers, "idx": list(range(len(labels)))}
    for column, text in zip(texts, ('the "old cat {}', "a dog' {} \u2028 sees"), strict=False):
        rows[column] = [text.format(i) for i in range(len(labels))]
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    lines = ["---", "configs:", f"- config_name: {config}", "  data_files:"]
    for split in ("train", *(file.replace("dev", "validation") for file in protocol.dev)):
        made.to_parquet(tmp_path / "hub" / config / f"{split}.parquet")
        lines += [f"  - split: {split}", f"    path: {config}/{split}.parquet"]
    (tmp_path / "hub" / "README.md").write_text("\n".join([*lines, "---", ""]))

    ours = opened(tmp_path / "tsv", name, small_tokenizer)
    theirs = glue.open_task(name, f"hf:{tmp_path / 'hub'}", small_tokenizer, 64)
    assert set(theirs.dev) == set(ours.dev)
    assert theirs.test == {}
    for a, b in ((ours.train, theirs.train), *((ours.dev[file], theirs.dev[file]) for file in ours.dev)):
        for one, other in zip(a.rows, b.rows, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            assert (one.second, pytest.approx(float(one.target))) == (other.second, float(other.target))
    assert len(glue.files(name, f"hf:{tmp_path / 'hub'}")) == 1 + len(protocol.dev)


def test_a_hub_that_has_no_such_task(tmp_path, small_tokenizer):
    with pytest.raises(ValueError, match="no dataset with a config 'cola'"):
        glue.open_task("cola", f"hf:{tmp_path / 'nothing'}", small_tokenizer, 64)
