"""`elektron score`: lines, pairs, lists."""

import json
import sys

import pytest

from elektron.cli import main


@pytest.fixture
def score(untaught, monkeypatch, capsys):
    def run(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["elektron", "score", *map(str, words), "--model", str(untaught)])
        main()
        return capsys.readouterr().out

    return run


@pytest.fixture
def value(score, tmp_path):
    """The score of one text."""

    def of(text: str, *words: object) -> float:
        path = tmp_path / "one.txt"
        path.write_text(text)
        return float(score(path, *words).split("\t")[0])

    return of


def test_lines(score, value, tmp_path):
    texts = ["The old cat sees a dog.", "", "a bird\tsees"]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(texts))
    rows = [line.split("\t", 1) for line in score(path).splitlines()]
    assert [row[1] for row in rows] == texts
    assert [float(row[0]) for row in rows] == pytest.approx([value(text or "\n") for text in texts], abs=1e-4)
    for by in ("detection", "energy", "masked"):
        found = [json.loads(line) for line in score(path, "--by", by, "--total", "mean", "--json").splitlines()]
        assert [record["text"] for record in found] == texts
        assert found[1]["score"] == 0
        assert found[0]["score"] == pytest.approx(value(texts[0], "--by", by, "--total", "mean"), abs=1e-4)
    by_way = {value(texts[0], "--by", by) for by in ("detection", "energy", "masked")}
    assert len(by_way) == 3


def test_pairs(score, value, tmp_path):
    sentences = ["the cat sees a dog .", "the cat a dog sees .", "a bird", "bird a", "the king", "king the the"]
    pairs = [{"sentence_good": a, "sentence_bad": b} for a, b in zip(sentences[::2], sentences[1::2], strict=True)]
    path = tmp_path / "order.jsonl"
    path.write_text("\n".join(map(json.dumps, pairs)))
    said = score("--pairs", path, "--out", tmp_path / "out.json")
    right = sum(value(pair["sentence_good"]) > value(pair["sentence_bad"]) for pair in pairs)
    assert f"| order | {100 * right / 3:.1f} |" in said
    assert "| all |" in said
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["accuracy"] == pytest.approx(right / 3)
    assert found["by"] == "detection"
    assert found["sets"] == {"order": pytest.approx(right / 3)}


def test_lists(score, value, tmp_path):
    """The weight is chosen on one list and used on another."""
    good, bad = sorted(["the cat sees a dog", "the dog a sees cat"], key=value, reverse=True)
    margin = value(good) - value(bad)
    for name, lead in (("tune", 0.5), ("test", 0.4)):
        hypotheses = [{"text": bad, "score": lead * margin}, {"text": good, "score": 0.0}]
        record = {"reference": good, "hypotheses": hypotheses}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record))
    flags = ["--rerank", tmp_path / "test.jsonl", "--out", tmp_path / "out.json"]
    score(*flags, "--tune", tmp_path / "tune.jsonl")
    found = json.loads((tmp_path / "out.json").read_text())
    assert 0.5 < found["weight"] < 0.6
    assert found["errors"] == {"first": pytest.approx(4), "reranked": 0, "best of each list": 0}
    score(*flags, "--weight", 0.1)
    assert json.loads((tmp_path / "out.json").read_text())["errors"]["reranked"] == 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rerank", "x"], "--rerank needs --tune FILE"),
        (["--rerank", "x", "--tune", "./x"], "must not be the list that is judged"),
        (["--rerank", "x", "--pairs", "y"], "one of --pairs and --rerank"),
        (["--pairs", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--length", 64], "longer than the model's 32 positions"),
        (["--length", 2], "no room for text"),
    ],
)
def test_what_cannot_be_scored(words, sentence, score, capsys):
    with pytest.raises(SystemExit) as caught:
        score(*words)
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err
