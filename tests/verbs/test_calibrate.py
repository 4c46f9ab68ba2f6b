"""`elektron calibrate`, and `detect` with what it left."""

import json
import shutil
import sys

import numpy as np
import pytest

from elektron.cli import main
from elektron.score.reader import LEAD


@pytest.fixture
def model(untaught, tmp_path):
    return shutil.copytree(untaught, tmp_path / "model")


@pytest.fixture
def elektron(monkeypatch, capsys):
    def run(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["elektron", *map(str, words)])
        main()
        return capsys.readouterr().out

    return run


def marked(elektron, model, text, tmp_path) -> dict[str, float]:
    path = tmp_path / "text.txt"
    path.write_text(text)
    found = json.loads(elektron("detect", path, "--model", model, "--json", "--suggest", 0))
    return {word["text"]: word["replaced"] for word in found["words"]}


def test_from_labels_to_probabilities(elektron, model, tmp_path):
    """Words whose labels follow the logits, but three times as sure and much rarer."""
    nouns = "cat dog bird fish king queen child river mountain house".split()
    draw = np.random.default_rng(0)
    sentences = [[str(word) for word in draw.choice(nouns, 6)] for _ in range(200)]
    (tmp_path / "plain.txt").write_text("\n".join(" ".join(sentence) for sentence in sentences))
    said = elektron("detect", tmp_path / "plain.txt", "--model", model, "--json", "--suggest", 0)
    plain = [[word["replaced"] for word in json.loads(line)["words"]] for line in said.splitlines()]
    assert all(len(values) == 6 for values in plain)
    logits = [np.log(np.array(values)) - np.log1p(-np.array(values)) for values in plain]
    tags = [["i" if draw.random() < 1 / (1 + np.exp(1 - value / 3)) else "c" for value in values] for values in logits]
    for name, part in (("dev", slice(100)), ("test", slice(100, 200))):
        blocks = [
            "\n".join(map("\t".join, zip(*pair, strict=True))) for pair in zip(sentences[part], tags[part], strict=True)
        ]
        (tmp_path / f"{name}.tsv").write_text("\n\n".join(blocks) + "\n")
    flags = ["--dev", tmp_path / "dev.tsv", "--test", tmp_path / "test.tsv", "--out", tmp_path / "out.json"]
    flags += ["--lead", ""]
    said = elektron("calibrate", model, *flags, "--html", tmp_path / "page.html")
    assert "600 dev, 600 test words" in said
    out = json.loads((tmp_path / "out.json").read_text())
    kept = json.loads((model / "discriminator" / "calibration.json").read_text())
    assert kept["fitted_on"] == str(tmp_path / "dev.tsv")
    assert out["calibration"]["threshold"] == kept["threshold"]
    before, after = (out["found"]["test"][way] for way in ("as it is", "calibrated"))
    assert after["Brier"] < before["Brier"]
    assert after["calibration error"] < before["calibration error"]
    assert before["F0.5"] == pytest.approx(after["F0.5"]), "the order of words is the same"
    assert (tmp_path / "page.html").read_text().count("<polyline") == 6

    text = " ".join(sentences[0])
    uncalibrated = dict(zip(sentences[0], plain[0], strict=True))
    found = marked(elektron, model, text, tmp_path)
    for word, value in found.items():
        logit = np.log(uncalibrated[word] / (1 - uncalibrated[word]))
        expected = 1 / (1 + np.exp(-(logit / kept["temperature"] + kept["shift"])))
        assert value == pytest.approx(expected, abs=1e-4)
    shown = elektron("detect", tmp_path / "text.txt", "--model", model, "--color", "never", "--suggest", 0)
    assert shown.count("[") == sum(found[word] >= kept["threshold"] for word in sentences[0])
    raw = elektron("detect", tmp_path / "text.txt", "--model", model, "--json", "--suggest", 0, "--no-calibrated")
    assert [word["replaced"] for word in json.loads(raw)["words"]] == pytest.approx(plain[0], abs=1e-5)


def test_the_better_lead_is_kept_and_used(elektron, model, tmp_path):
    """Words whose labels follow what is said of them after the lead."""
    lines = ["the cat sees", "a dog of the king", "queen and child", "the old river"] * 30
    (tmp_path / "plain.txt").write_text("\n".join(lines))
    words = ["detect", tmp_path / "plain.txt", "--model", model, "--json", "--suggest", 0]
    said = {
        lead: [json.loads(line)["words"] for line in elektron(*words, "--lead", lead).splitlines()]
        for lead in ("", LEAD)
    }
    assert said[""] != said[LEAD]
    for lead, of_lines in said.items():
        chances = [word["replaced"] for found in of_lines for word in found]
        middle = float(np.median(chances))
        columns = ["\n".join(f"{w['text']}\t{'ci'[w['replaced'] > middle]}" for w in found) for found in of_lines]
        (tmp_path / "dev.tsv").write_text("\n\n".join(columns) + "\n")
        elektron("calibrate", model, "--dev", tmp_path / "dev.tsv")
        kept = json.loads((model / "discriminator" / "calibration.json").read_text())
        assert kept["lead"] == lead
        found = [word["replaced"] for line in elektron(*words).splitlines() for word in json.loads(line)["words"]]
        logits = np.log(chances) - np.log1p(-np.array(chances))
        expected = 1 / (1 + np.exp(-(logits / kept["temperature"] + kept["shift"])))
        assert found == pytest.approx(expected.tolist(), abs=1e-3)
        other = "" if lead else LEAD
        raw = [json.loads(line)["words"] for line in elektron(*words, "--lead", other).splitlines()]
        assert raw == said[other], "what was fitted for one lead does not hold for another"


@pytest.mark.parametrize(
    ("kind", "generator", "way"),
    [("electra", "masked", "detection"), ("electric", "two-tower", "energy"), ("mlm", "masked", "masked")],
)
def test_each_model_is_asked_what_it_was_trained_for(kind, generator, way, elektron, data_folder, tmp_path, capsys):
    """Words are errors where it likes them less, behind the lead. Answers to other questions are not kept."""
    run, lead = tmp_path / kind, "The king"
    small = (
        "--preset tiny --start original --model.layers 1 --model.width 16 --model.heads 2 --model.embedding-width 16 "
        "--model.feedforward-width 32 --objective.generator-width 1 --objective.generator-layers 1 "
        f"--train.phases 10 16 4 --watch.evaluate-rows 8 --objective.kind {kind} --objective.generator {generator}"
    )
    with pytest.raises(SystemExit) as ended:
        elektron("pretrain", *small.split(), "--data", data_folder, "--run", run)
    assert ended.value.code == 0
    capsys.readouterr()
    words = "cat dog bird fish king queen child river mountain house".split()
    (tmp_path / "words.txt").write_text("\n".join(words) + "\n")

    def scores(*flags: object) -> list[float]:
        said = elektron("score", tmp_path / "words.txt", "--model", run, *flags).splitlines()
        return [float(line.split("\t")[0]) for line in said]

    liked = scores("--lead", lead)
    assert liked != scores()
    labels = ["ci"[score < float(np.median(liked))] for score in liked]
    (tmp_path / "dev.tsv").write_text("\n\n".join(map("\t".join, zip(words, labels, strict=True))) + "\n")
    asked = "calibrate", run, "--dev", tmp_path / "dev.tsv", "--lead", lead, "--out", tmp_path / "out.json"
    if way == "detection":
        assert "kept" not in elektron(*asked, "--by", "masked")
    assert not (run / "calibration.json").exists()
    assert f"kept: {run}" in elektron(*asked)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["by"] == way
    assert found["found"]["dev"]["calibrated"]["average precision"] > 0.9
    assert scores() == liked, "score is led in as it was calibrated"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("cat\tc\ndog\tx\n", "words are to be c or i, not x"),
        ("cat\tc\ndog\tc\n", "0 of 2 words are errors"),
    ],
)
def test_what_cannot_be_calibrated_with(content, sentence, elektron, model, tmp_path, capsys):
    (tmp_path / "dev.tsv").write_text(content)
    with pytest.raises(SystemExit):
        elektron("calibrate", model, "--dev", tmp_path / "dev.tsv")
    assert sentence in capsys.readouterr().err
    with pytest.raises(SystemExit):
        elektron("calibrate", model)
    assert "--dev FILE" in capsys.readouterr().err
