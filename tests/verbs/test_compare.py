"""`elektron compare`: several objectives with one budget, stopped and taken up again."""

import json
import subprocess
import sys

import pytest

from elektron.cli import main

OBJECTIVES = "electra,mlm,replace-mlm"
MICRO = [
    *("--preset", "tiny", "--start", "original", "--model.width", 16, "--model.heads", 2, "--model.layers", 1),
    *("--model.feedforward-width", 32, "--model.embedding-width", 16, "--watch.evaluate-rows", 8),
    *("--objective.generator-width", 1.0, "--objective.generator-layers", 1.0, "--train.phases", 10, 16, 4),
]


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["elektron", "compare", *map(str, words)])
    main()


@pytest.fixture
def tags(tmp_path):
    folder = tmp_path / "tags"
    folder.mkdir()
    sentence = "The DET\nold ADJ\ncat NOUN\nsees VERB\na DET\nfish NOUN\n. PUNCT\n\n"
    (folder / "train.txt").write_text(sentence * 20)
    (folder / "dev.txt").write_text(sentence * 3)
    return folder


def test_one_budget_for_all(data_folder, tags, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    arguments = [*MICRO, "--data", data_folder, "--run", out, "--objectives", OBJECTIVES, "--seeds", 2]
    arguments += ["--probes", f"pos={tags}", "--points", 2, "--budget-flops", 4e7]
    run(monkeypatch, *arguments)
    said = capsys.readouterr().out
    turns = [f"{kind}, seed {seed}:" for seed in (0, 1) for kind in OBJECTIVES.split(",")]
    assert sorted(turns, key=said.index) == turns
    plan = json.loads((out / "plan.json").read_text())
    for share in plan.values():
        assert share["flops"] == pytest.approx(4e7, rel=0.1)
    steps = {kind: share["phases"][0][0] for kind, share in plan.items()}
    assert steps["mlm"] > steps["electra"], "one network is cheaper than two"
    results = json.loads((out / "results.json").read_text())
    assert list(results) == OBJECTIVES.split(",")
    for kind, seeds in results.items():
        assert len(seeds) == 2
        for quality in seeds:
            assert quality["flops"] == pytest.approx(plan[kind]["flops"])
            assert len(quality["probes"]["pos"]) == 2
            assert quality["probes"]["pos"][-1][0] == pytest.approx(quality["flops"])
            assert 0 < quality["probes"]["pos"][-1][1] <= 1
        assert seeds[0]["held"] != seeds[1]["held"]
    assert "generator_loss" in results["electra"][0]["held"]
    assert "generator_loss" not in results["mlm"][0]["held"]
    table = (out / "results.md").read_text().splitlines()
    assert table[0].startswith("| objective | FLOPs | tokens | seconds | pos probe |")
    assert [line.split(" | ")[0] for line in table[2:]] == [f"| {kind}" for kind in OBJECTIVES.split(",")]
    assert " ± " in table[2]
    page = (out / "compare.html").read_text()
    assert page.count("<polyline") == 3
    assert "class=colour-2" in page
    assert said.count("probe pos at step") == 12

    before = {path: path.read_bytes() for path in out.glob("*/*/checkpoints/*/*")}
    run(monkeypatch, *arguments)
    again = capsys.readouterr().out
    assert "probe pos" not in again
    assert {path: path.read_bytes() for path in before} == before
    assert json.loads((out / "results.json").read_text()) == results
    with pytest.raises(SystemExit):
        run(monkeypatch, *arguments[:-1], 8e7)
    assert "is a comparison with other settings" in capsys.readouterr().err


def test_stopped_on_the_way_it_comes_to_the_same(data_folder, tags, tmp_path, monkeypatch):
    arguments = [*MICRO, "--data", data_folder, "--objectives", "electra", "--points", 2, "--probes", f"pos={tags}"]
    arguments += ["--budget-tokens", 400 * 64, "--watch.log-every", 10]
    run(monkeypatch, *arguments, "--run", tmp_path / "whole")
    out = tmp_path / "parts"
    command = [sys.executable, "-m", "elektron", "compare", *map(str, arguments), "--run", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if line.startswith("step 210/"):  # the first half is over
                break
        process.terminate()
        process.stdout.read()
    assert process.returncode == 143
    steps = [int(path.name.removeprefix("step-")) for path in (out / "electra/seed-0/checkpoints").glob("step-*")]
    assert min(steps) == 200 < max(steps) < 400
    run(monkeypatch, *arguments, "--run", out)
    results, expected = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("parts", "whole"))
    for found in results["electra"] + expected["electra"]:
        del found["seconds"]
    assert results == expected


def test_tokens_seconds_and_tasks(data_folder, tags, tmp_path, monkeypatch):
    arguments = [*MICRO, "--data", data_folder, "--objectives", "electra,mlm", "--task-seeds", 1]
    arguments += ["--tasks", f"pos={tags}"]
    run(monkeypatch, *arguments, "--run", tmp_path / "tokens", "--budget-tokens", 20 * 64)
    plan = json.loads((tmp_path / "tokens" / "plan.json").read_text())
    assert [share["tokens"] for share in plan.values()] == [1280, 1280]
    results = json.loads((tmp_path / "tokens" / "results.json").read_text())
    for kind, (quality,) in results.items():
        flops = plan[kind]["flops"]
        assert [at for at, _ in quality["tasks"]["pos"]] == pytest.approx([flops / 4, flops / 2, 3 * flops / 4, flops])
        assert all(0 <= score <= 1 for _, score in quality["tasks"]["pos"])
    run(monkeypatch, *MICRO, "--data", data_folder, "--run", tmp_path / "s", "--budget-seconds", 2)
    assert all(share["tokens"] >= 640 for share in json.loads((tmp_path / "s" / "plan.json").read_text()).values())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--objectives", "electra,bert"], "unknown objective 'bert'"),
        (["--budget-flops", 1e9, "--budget-tokens", 100], "one budget at a time"),
        (["--budget-flops", 10], "the budget buys 0 steps of electra"),
        (["--probes", "cola=x"], "probes are of words' tags"),
        (["--probes", "pos"], "are NAME=FOLDER"),
        (["--probes", "pos=nowhere"], "is missing"),
        (["--tasks", "sts-b=nowhere"], "unknown task 'sts-b'; known are glue, cola"),
        (["--seeds", 0], "at least 1"),
    ],
)
def test_what_cannot_be_compared(words, sentence, data_folder, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, *MICRO, "--data", data_folder, "--run", tmp_path / "out", *words)
    assert sentence in capsys.readouterr().err
