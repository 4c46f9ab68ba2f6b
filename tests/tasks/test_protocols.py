"""Tasks from files: what is asked, and how answers are counted. Networks are played by scores that know the answer."""

import json
from pathlib import Path

import numpy as np
import pytest

from elektron.data.examples import IGNORED
from elektron.data.tokenizer import Tokenizer
from elektron.tasks.own import own_task
from elektron.tasks.protocols import SourceConfig, files_of, plan_of
from elektron.tasks.reading import READING, reading_task
from elektron.tasks.task import Files, Outputs, Split
from elektron.tasks.words import TAGGING, Tagging, tagging_task

CHUNKS = "The DT B-NP\nold JJ I-NP\ncat NN I-NP\nsees VB B-VP\n\nA DT B-NP\ndog NN I-NP\n. . O\n"
ERRORS = "The\tc\ncat\tc\nsee\ti\n\nA\ti\ndog\tc\n"


def told(split: Split, count: int) -> Outputs:
    """Scores of the targets: one where they are, zero elsewhere."""
    found = []
    for row in split.rows:
        scores = np.zeros((len(row.tokens), count))
        if row.target.shape == (2,) and count == 2 and split.known is not None and not hasattr(split.known, "labels"):
            scores[row.target[0], 0] = scores[row.target[1], 1] = 1.0
        else:
            where = np.flatnonzero(row.target != IGNORED)
            scores[where, row.target[where]] = 1.0
        found.append(scores)
    return found


def columns(tmp_path: Path, train: str, dev: str) -> Files:
    (tmp_path / "train.txt").write_text(train)
    (tmp_path / "dev.txt").write_text(dev)
    return files_of("chunk", tmp_path)


def test_chunks(tmp_path: Path, small_tokenizer: Tokenizer):
    task = tagging_task("chunk", TAGGING["chunk"], None, columns(tmp_path, CHUNKS, CHUNKS), small_tokenizer, 64)
    assert task.labels == ("B-NP", "E-NP", "I-NP", "O", "S-VP")
    split = task.dev["dev"]
    right = told(split, 5)
    assert task.metrics(split.known, right) == {"precision": 1.0, "recall": 1.0, "f1": 1.0}
    assert task.metric == "f1"
    said = task.answers(split.known, right)[".tsv"].split("\n")
    assert said[:5] == ["The\tB-NP", "old\tI-NP", "cat\tI-NP", "sees\tB-VP", ""]
    nothing = [np.eye(5)[[3] * len(row.tokens)] for row in split.rows]
    assert task.metrics(split.known, nothing)["f1"] == 0.0


def test_tags_that_were_never_learned_are_told(tmp_path: Path, small_tokenizer: Tokenizer):
    files = columns(tmp_path, CHUNKS, CHUNKS.replace("O\n", "B-LST\n"))
    task = tagging_task("chunk", TAGGING["chunk"], None, files, small_tokenizer, 64)
    assert task.notes == ("1 words of dev.txt have tags that train.txt never shows: S-LST",)


def test_errors(tmp_path: Path, small_tokenizer: Tokenizer):
    task = tagging_task("ged", TAGGING["ged"], None, columns(tmp_path, ERRORS, ERRORS), small_tokenizer, 64)
    split = task.dev["dev"]
    assert task.metrics(split.known, told(split, 2)) == {"f0.5": 1.0, "precision": 1.0, "recall": 1.0}
    all_wrong = [np.eye(2)[[1] * len(row.tokens)] for row in split.rows]
    found = task.metrics(split.known, all_wrong)
    assert found["recall"] == 1.0
    assert found["precision"] == pytest.approx(2 / 5)
    assert found["f0.5"] == pytest.approx(1.25 * 0.4 / (0.25 * 0.4 + 1))


def test_one_s_own_tags(tmp_path: Path, small_tokenizer: Tokenizer):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"w": ["the", "cat"], "t": ["D", "N"]}) + "\n")
    task = tagging_task("own", Tagging("tokens"), ("w", "t"), Files(path, path, path), small_tokenizer, 16)
    assert task.labels == ("D", "N")
    assert task.metrics(task.dev["dev"].known, told(task.dev["dev"], 2)) == {"accuracy": 1.0}
    assert set(task.test) == {"test"}


def test_one_s_own_entities_and_words_without_tags(tmp_path: Path, small_tokenizer: Tokenizer):
    path, untagged = tmp_path / "own.jsonl", tmp_path / "test.jsonl"
    path.write_text(json.dumps({"words": ["the", "cat", "sees"], "tags": ["O", "B-X", "O"]}) + "\n")
    untagged.write_text(json.dumps({"words": ["a", "dog"]}) + "\n")
    source = SourceConfig(
        train=str(path), dev=str(path), test=str(untagged), text="words", label="tags", kind="tagging"
    )
    task = plan_of("own", source).open(small_tokenizer, 16)
    assert task.metrics(task.dev["dev"].known, told(task.dev["dev"], 2))["f1"] == 1.0
    test = task.test["test"]
    said = [np.eye(2)[[1] * len(row.tokens)] for row in test.rows]
    assert task.answers(test.known, said) == {".tsv": "a\tO\ndog\tO\n\n"}
    (tmp_path / "test.txt").write_text("a\ndog\n\nfish\n")
    columns(tmp_path, CHUNKS, CHUNKS)
    task = plan_of("chunk", SourceConfig(data=str(tmp_path))).open(small_tokenizer, 64)
    assert len(task.test["test"].rows) == 2
    assert task.labels == ("B-NP", "E-NP", "I-NP", "O", "S-VP")


def squad_file(path: Path, version: str) -> None:
    context = "The old cat sees a dog. The queen likes the river."
    asked = [
        {"id": "1", "question": "Who sees?", "answers": [{"text": "old cat", "answer_start": 4}]},
        {"id": "2", "question": "Who likes?", "answers": [{"text": "The queen", "answer_start": 24}]},
        {"id": "3", "question": "Who is lost?", "answers": [{"text": "a mountain", "answer_start": 3}]},
    ]
    if version == "v2.0":
        asked.append({"id": "4", "question": "Why?", "answers": [], "is_impossible": True})
    path.write_text(json.dumps({"version": version, "data": [{"paragraphs": [{"context": context, "qas": asked}]}]}))


@pytest.mark.parametrize("length", [80, 128])
def test_short_rows_show_every_answer_whole(tmp_path: Path, small_tokenizer: Tokenizer, length: int):
    """Wherever it stands in a long context: the borders of one window lie inside another."""
    words = ["The cat sees a dog .".split()[number % 6] for number in range(300)]
    starts = [sum(len(word) + 1 for word in words[:number]) for number in range(0, 290, 7)]
    questions = [
        {
            "id": str(start),
            "question": "Who sees whom?",
            "answers": [{"text": " ".join(words)[start : start + 12].rstrip(), "answer_start": start}],
        }
        for start in starts
    ]
    paragraphs = [{"context": " ".join(words), "qas": questions}]
    for name in ("train", "dev"):
        content = {"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}
        (tmp_path / f"{name}-v1.1.json").write_text(json.dumps(content))
    task = reading_task("squad", READING["squad"], files_of("squad", tmp_path), small_tokenizer, length)
    windows = task.dev["dev"].known.windows
    shown = {window.question for window in windows if window.row.target.any()}
    assert shown == set(range(len(starts)))


@pytest.mark.parametrize(("name", "version"), [("squad", "v1.1"), ("squad2", "v2.0")])
def test_questions(name, version, tmp_path: Path, small_tokenizer: Tokenizer):
    for part in ("train", "dev"):
        squad_file(tmp_path / f"{part}-{version}.json", version)
    task = reading_task(name, READING[name], files_of(name, tmp_path), small_tokenizer, 90)
    assert len(task.train.rows) == (2 if name == "squad" else 3)
    assert task.notes == (
        f"1 questions of train-{version}.json whose answer is not in their context are left out",
        f"1 questions of dev-{version}.json whose answer is not in their context are asked all the same",
    )
    split = task.dev["dev"]
    right = told(split, 2)
    found = task.metrics(split.known, right)
    if name == "squad":
        assert found["exact"] == pytest.approx(2 / 3)
    else:
        assert (found["exact"], found["HasAns_exact"], found["NoAns_exact"]) == (0.75, pytest.approx(2 / 3), 1.0)
        assert found["best_exact"] == 0.75
    said = json.loads(task.answers(split.known, right)[".json"])
    assert said["1"] == "old cat"
    assert said["2"] == "The queen"
    assert said.get("4", "") == ""
    doubts = json.loads(task.answers(split.known, right)["-null-odds.json"])
    assert all((doubts[key] > 0) == (said[key] == "") for key in said if name == "squad2")
    best = json.loads(task.answers(split.known, right)["-nbest.json"])
    assert best["1"][0]["text"] == "old cat"
    assert len(best["1"]) > 3


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_tables_of_one_s_own(suffix, tmp_path: Path, small_tokenizer: Tokenizer):
    rows = [("the cat, old", 'a "dog"', "yes"), ("a bird", "a\nfish", "no"), ("the king", "the queen", "yes")]
    path = tmp_path / f"own{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps({"a": a, "b": b, "y": y}) + "\n" for a, b, y in rows))
    elif suffix == ".csv":
        quoted = ['"' + '","'.join(cell.replace('"', '""') for cell in row) + '"' for row in rows]
        path.write_text("\n".join(["a,b,y", *quoted]) + "\n")
    else:
        path.write_text("\n".join(["a\tb\ty", *("\t".join(row).replace("\n", " ") for row in rows)]) + "\n")
    task = own_task("classification", Files(path, path, path), ("a", "b"), "y", small_tokenizer, 32)
    assert task.labels == ("no", "yes")
    assert task.dev["dev"].known.targets.tolist() == [1, 0, 1]
    first, second = (small_tokenizer.encode([text])[0].tolist() for text in rows[0][:2])
    cls, sep = small_tokenizer.specials.cls, small_tokenizer.specials.sep
    assert task.train.rows[0].tokens.tolist() == [cls, *first, sep, *second, sep]
    right = [np.eye(2)[row.target] for row in task.dev["dev"].rows]
    assert task.metrics(task.dev["dev"].known, right) == {"accuracy": 1.0, "f1": 1.0}
    assert task.answers(task.test["test"].known, right)[".tsv"].split("\n") == [
        "index\tprediction",
        "0\tyes",
        "1\tno",
        "2\tyes",
        "",
    ]


def test_values_of_one_s_own(tmp_path: Path, small_tokenizer: Tokenizer):
    path = tmp_path / "own.csv"
    path.write_text("text,y\nthe cat,1.5\na dog,2\nthe king,-3\n")
    task = own_task("regression", Files(path, path, None), ("text",), "y", small_tokenizer, 32)
    right = [row.target[None] for row in task.dev["dev"].rows]
    assert task.metrics(task.dev["dev"].known, right) == {"spearman": pytest.approx(1.0), "pearson": pytest.approx(1.0)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,y\na,b,c\n", r"line 2: 3 columns, where the others have 2"),
        ("text,z\na,b\n", "no column 'y'"),
        ("text,y\n", "no examples"),
        ('text,y\n"a,b\n', "not CSV"),
    ],
)
def test_bad_tables(content, message, tmp_path: Path, small_tokenizer: Tokenizer):
    path = tmp_path / "own.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        own_task("classification", Files(path, path, None), ("text",), "y", small_tokenizer, 32)


def test_unknown_labels_and_files(tmp_path: Path, small_tokenizer: Tokenizer):
    train, dev = tmp_path / "a.csv", tmp_path / "b.csv"
    train.write_text("text,y\na,1\nb,2\n")
    dev.write_text("text,y\na,1\nb,3\n")
    with pytest.raises(ValueError, match=r"b\.csv, example 2: unknown label '3'; known are 1, 2"):
        own_task("classification", Files(train, dev, None), ("text",), "y", small_tokenizer, 32)
    with pytest.raises(ValueError, match=r"train\.txt is missing: say --train FILE, or --data FOLDER"):
        plan_of("ner", SourceConfig(data=str(tmp_path)))
    with pytest.raises(ValueError, match="not a table"):
        own_task("classification", Files(tmp_path / "x.xml", dev, None), ("text",), "y", small_tokenizer, 32)


def test_each_file_may_be_named(tmp_path: Path, small_tokenizer: Tokenizer):
    columns(tmp_path, CHUNKS, CHUNKS)
    (tmp_path / "other.txt").write_text(CHUNKS.replace("cat NN I-NP", "bird NN I-NP"))
    source = SourceConfig(data=str(tmp_path), dev=str(tmp_path / "other.txt"), test=str(tmp_path / "train.txt"))
    plan = plan_of("chunk", source)
    assert {role: path.name for role, path in plan.files.items()} == {
        "train": "train.txt",
        "dev": "other.txt",
        "test": "train.txt",
    }
    task = plan.open(small_tokenizer, 64)
    assert "bird" in task.answers(task.dev["dev"].known, told(task.dev["dev"], 5))[".tsv"]
    with pytest.raises(ValueError, match=r"nowhere\.txt is missing: say --dev FILE"):
        plan_of("chunk", SourceConfig(data=str(tmp_path), dev=str(tmp_path / "nowhere.txt")))
    with pytest.raises(ValueError, match="are not for it"):
        plan_of("rte", SourceConfig(data=str(tmp_path), dev="x"))


def test_columns_of_tags(tmp_path: Path, small_tokenizer: Tokenizer):
    columns(tmp_path, CHUNKS, CHUNKS)
    assert plan_of("pos", SourceConfig(data=str(tmp_path), columns="0,1")).open(small_tokenizer, 64).labels == (
        *(".", "DT", "JJ", "NN", "VB"),
    )
    line = "1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\n"
    (tmp_path / "x.conllu").write_text(line)
    source = SourceConfig(train=str(tmp_path / "x.conllu"), dev=str(tmp_path / "x.conllu"))
    assert plan_of("pos", source).open(small_tokenizer, 64).labels == ("DET",)
    with pytest.raises(ValueError, match="names two by their numbers"):
        plan_of("pos", SourceConfig(data=str(tmp_path), columns="0"))


def test_errors_are_named_c_and_i(tmp_path: Path, small_tokenizer: Tokenizer):
    files = columns(tmp_path, ERRORS.replace("\ti", "\twrong"), ERRORS)
    with pytest.raises(ValueError, match=r"c or i \(incorrect\), not c, i, wrong"):
        tagging_task("ged", TAGGING["ged"], None, files, small_tokenizer, 64)


@pytest.mark.parametrize("text", ["a,b,c", "a,", ""])
def test_one_text_or_two(text, tmp_path: Path):
    (tmp_path / "x.csv").write_text("a,b,c\n1,2,3\n")
    source = SourceConfig(train=str(tmp_path / "x.csv"), dev=str(tmp_path / "x.csv"), text=text)
    with pytest.raises(ValueError, match="one column, or the two of a pair"):
        plan_of("own", source)


def test_two_columns_of_one_name(tmp_path: Path, small_tokenizer: Tokenizer):
    path = tmp_path / "own.csv"
    path.write_text("text,y,text\na,b,c\n")
    with pytest.raises(ValueError, match="two columns have one name"):
        own_task("classification", Files(path, path, None), ("text",), "y", small_tokenizer, 32)


def test_half_a_character(tmp_path: Path, small_tokenizer: Tokenizer):
    path = tmp_path / "own.jsonl"
    path.write_text('{"text": "\\ud800", "y": "1"}\n')
    with pytest.raises(ValueError, match=r"own\.jsonl, line 1: 'text' has half a character"):
        own_task("classification", Files(path, path, None), ("text",), "y", small_tokenizer, 32)
