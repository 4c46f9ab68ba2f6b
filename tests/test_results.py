"""The tables of docs/results.md are those that the stored runs make."""

import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from elektron.data.tokenizer import ROLES
from elektron.interop.huggingface import their_config, to_tensors
from elektron.model.encoder import Embeddings, EncoderConfig
from elektron.model.heads import Discriminator
from elektron.verbs.runs import open_encoder
from test_house import parse

ROOT = Path(__file__).resolve().parent.parent


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "runs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tables(root: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, root / "runs" / "tables.py", *flags], capture_output=True, text=True)


def test_the_tables_are_what_the_runs_say():
    done = tables(ROOT, "--check")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """What the tables are made of, and what they are made with."""
    for name in ("README.md", "runs/tables.py", "runs/curves.py", "docs/results.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "docs" / "experiments", tmp_path / "docs" / "experiments")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("docs/results.md", "70.7 (69.1 to 71.2)", "80.7 (69.1 to 71.2)"),
        ("README.md", "minutes of one H200", "seconds of one H200"),
        ("docs/experiments/quarter.svg", ' points="', ' points="0.0,0.0 '),
    ],
)
def test_a_number_that_is_not_the_runs_is_found_and_mended(copied, name, right, wrong):
    path, before = copied / name, (ROOT / name).read_text()
    assert right in before
    path.write_text(before.replace(right, wrong))
    checked = tables(copied, "--check")
    assert (checked.returncode, checked.stderr) == (1, f"not as it would be written: {name}\n")
    assert tables(copied).returncode == 0
    assert path.read_text() == before


def test_curves_are_where_their_numbers_are():
    curves = script("curves")

    def records(tokens: int, losses: list[float], metric: str = "generator_loss") -> list[dict[str, Any]]:
        of_training = [{"kind": "train", "step": 1 + step, metric: loss} for step, loss in enumerate(losses)]
        return [{"kind": "run", "steps": len(losses), "tokens": tokens}, *of_training]

    first, second = records(100_000_000, [9.0, 4.0, 3.0, 2.5]), records(50_000_000, [8.0, 5.0])
    masked = records(9_000_000, [7.0, 6.0, 5.0], "encoder_loss")
    root = ElementTree.fromstring(curves.drawing("a < b", {"two <seeds>": [first, second], "another": [masked]}))
    one, two, other, *legend = root.findall(".//{*}polyline")
    assert len(other.attrib["points"].split()) == 2, "the third before it lies in the beginning"
    assert one.attrib["stroke"] == two.attrib["stroke"] == legend[0].attrib["stroke"] != legend[1].attrib["stroke"]
    places = [[tuple(map(float, point.split(","))) for point in line.attrib["points"].split()] for line in (one, two)]
    left, width, top, height = curves.GAP - 10, curves.WIDTH - 10, 26, curves.HEIGHT - 26
    for found, (tokens, losses) in zip(places, ((100, (9, 4, 3, 2.5)), (50, (8, 5))), strict=True):
        for number, ((x, y), loss) in enumerate(zip(found, losses, strict=True)):
            assert x == pytest.approx(left + width * tokens / 100 * (number + 1) / len(losses), abs=0.06)
            assert y == pytest.approx(top + height * (9 - loss) / 6.5, abs=0.06)
    texts = ["".join(text.itertext()) for text in root.findall(".//{*}text")]
    assert {"two <seeds>", "another", curves.PANELS["generator_loss"], curves.PANELS["encoder_loss"]} <= set(texts)
    assert curves.PANELS["discriminator_loss"] not in texts


TINY = (
    "--model.layers 1 --model.width 32 --model.heads 2 --model.feedforward-width 64 --model.embedding-width 16 "
    "--model.positions 64 --objective.generator-width 0.5 --schedule.warmup-steps 2 --train.phases 4 64 4 --device cpu"
)


def cells(table: str) -> list[list[str]]:
    """Of a table in Markdown, its header first."""
    header, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return [header, *lines]


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    cola = tmp_path / "glue" / "CoLA"
    cola.mkdir(parents=True)
    lines = [f"x\t{number % 2}\t\tThe {'cat sees' if number % 2 else 'sees cat'} a dog." for number in range(32)]
    for name in ("train", "dev"):
        (cola / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return cola.parent


def test_the_speed_run_from_text_to_a_table(text_file, glue, copied, tmp_path):
    """The scripts themselves, on a little of everything."""
    vocabulary = [*ROLES.values(), *(mark + letter for mark in ("", "##") for letter in "abcdefghijklmnopqrstuvwxyz")]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    for name in ("runs", "configs"):
        shutil.copytree(ROOT / name, copied / name, dirs_exist_ok=True, ignore=lambda *_: {"__pycache__"})
    environment = os.environ | {
        "ELEKTRON": f"{sys.executable} -m elektron",
        "PYTHON": sys.executable,
        "COMMIT": "abc1234",
        "TEXT": str(text_file),
        "VOCAB": str(tmp_path / "vocab.txt"),
        "GLUE": str(glue),
        "SEEDS": "2",
        "PREPARING": "--vocab-size 128 --processes 1",
        "FLAGS": TINY.replace("--train.phases 4 64 4", "--train.phases 4 64 4 --train.short 0"),
        "TUNING": "--device cpu --recipe.epochs 1",
        "RATES": "3e-3",
        "AGAINST": "0 1",
        "MASKED": "--schedule.learning-rate 4e-3",
        "BUDGET": "1.2e9",
        "TASKS": "cola",
        "BLIMP": str(tmp_path / "pairs.jsonl"),
    }
    pair = {"sentence_good": "The cats sleep.", "sentence_bad": "The cats sleeps.", "linguistics_term": "agreement"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair | {"UID": "one", "field": "syntax"}) + "\n")
    page, stored = copied / "docs" / "results.md", copied / "docs" / "experiments" / "runs"
    page.write_text("<!-- table speedrun -->\n<!-- end -->\n")
    for folder in stored.glob("speedrun-*"):
        if folder.name == "speedrun-record":
            (folder / "eye" / "of-another.json").write_text("{}")
        else:
            shutil.rmtree(folder)
    command = ["sh", copied / "runs" / "all.sh", "record", "rates", "against", "electric", "own"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

    made = script("tables")
    runs = made.read_runs(stored)
    kept = runs["speedrun-record"]
    assert kept.made["commit"] == "abc1234"
    assert kept.facts["tokens"] == 4 * 64 * 4
    assert kept.held["step"] == 4
    assert [result["step"] for result in kept.results["cola"]] == [4, 4]
    assert str(copied) not in (stored / "speedrun-record" / "config.toml").read_text()

    compared = {name: run for name, run in runs.items() if name.startswith("against-")}
    electric, own = compared.pop("against-electric-seed-0"), runs["speedrun-record-own"]
    assert [electric.config["objective"].get(name) for name in ("kind", "generator")] == ["electric", "two-tower"]
    seen = [electric, kept, own, compared["against-mlm-seed-0"]]
    assert [set(run.eye) for run in seen] == [{"blimp", "blimp-plain"}] * 4
    assert [run.eye["blimp"]["by"] for run in seen] == ["energy", "detection", "detection", "masked"]
    assert [run.facts["vocab_size"] for run in (kept, own)] == [len(vocabulary), 128]
    assert list(compared) == [f"against-{kind}-seed-{seed}" for kind in ("electra", "mlm") for seed in (0, 1)]
    assert compared["against-electra-seed-0"].records == kept.records
    assert {run.config["objective"].get("kind", "electra") for run in list(compared.values())[2:]} == {"mlm"}
    assert [run.config.get("seed", 0) for run in compared.values()] == [0, 1, 0, 1]
    assert all(run.score("cola") is not None for run in compared.values())
    assert [run.config["schedule"]["learning_rate"] for run in compared.values()] == [2e-3, 2e-3, 4e-3, 4e-3]
    tried = {name: run for name, run in runs.items() if name.startswith("rates-")}
    assert list(tried) == ["rates-3e-3-electra-seed-0", "rates-3e-3-mlm-seed-0"]
    (_, ours, theirs), (electra, masked) = cells(made.rates(runs)), tried.values()
    assert (ours[:2], theirs[:2]) == (["electra", "0.003"], ["mlm", "0.003"])
    assert ours[2:5] == [
        f"{electra.held[name]:.3f}" for name in ("generator_loss", "discriminator_loss", "detection_auc")
    ]
    assert theirs[2:5] == [f"{masked.held['encoder_loss']:.3f}", "", ""]

    header, ours, another, theirs, _ = cells(page.read_text().split("\n", 1)[1].rpartition("<!-- end")[0])
    assert (header[4], header[10]) == ("CoLA", "mean")
    assert {len(header)} == {len(ours), len(theirs)}
    assert [line[:2] for line in (ours, another)] == [[run.made["what"], "0.00e9"] for run in (kept, own)]
    assert ours[4] == made._median(kept, "cola")
    assert ours[10] == "", "no mean of six where there is one"
    assert theirs[4:11] == ["56.8", "88.3", "87.4", "86.8", "88.3", "68.5", "79.4"]
    took = f"{kept.minutes:.1f} minutes of one H200"
    assert cells(made.first(runs))[1][1:4] == [took, "0.0e9", f"{kept.score('cola'):.1f}"]
    half = kept._replace(records=[one | {"step": 2} if one["kind"] == "train" else one for one in kept.records])
    assert (kept.done, half.done) == (1, 0.5)
    assert cells(made.speedrun({"speedrun-half": half}))[1][2] == f"{kept.facts['flops'] / 2:.2g}"
    assert cells(made.losses("speedrun-", {"speedrun-one": kept}))[1:] == [
        [
            "the record run",
            *(f"{kept.held[name]:.3f}" for name in ("generator_loss", "discriminator_loss", "detection_auc")),
        ]
    ]


def test_a_comparison_from_data_to_a_table(data_folder, glue, tmp_path):
    environment = os.environ | {
        "ELEKTRON": f"{sys.executable} -m elektron",
        "DATA": str(data_folder),
        "GLUE": str(glue),
        "RUN": str(tmp_path / "compared"),
        "BUDGET": "1.2e9",
        "SEEDS": "2",
        "TASKS": "cola",
        "FLAGS": TINY.replace("4 64 4", "40 64 4") + " --watch.evaluate-rows 16",
    }
    done = subprocess.run(["sh", ROOT / "runs" / "against-mlm.sh"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

    keep, made = script("keep"), script("tables")
    keep.RUNS = tmp_path / "kept"
    keep.main(str(tmp_path / "compared"), "-", "against", "abc1234", "a trial")
    for name, scores in {"electra-seed-0": (0.1, 0.5, 0.2), "electra-seed-1": (0.4, 0.4, 0.4)}.items():
        results = keep.RUNS / f"against-{name}" / "results.json"
        told = json.loads(results.read_text())["cola"]
        assert len(told) == 3
        results.write_text(json.dumps({"cola": [one | {"score": s} for one, s in zip(told, scores, strict=True)]}))
    made.FIVE = ("cola",)
    header, *lines = cells(made.compared("against-", made.read_runs(keep.RUNS)))
    table = {line[0]: dict(zip(header, line, strict=True)) for line in lines}
    assert list(table) == ["electra", "mlm"]
    assert table["electra"]["CoLA"] == table["electra"]["mean"] == "30.0 ± 14.1", "of medians 20 and 40"
    for line in table.values():
        assert line["seeds"] == "2"
        assert float(line["FLOPs"]) == pytest.approx(1.2e9, rel=0.05)


def test_two_budgets_from_one_trunk(data_folder, tmp_path):
    environment = os.environ | {
        "ELEKTRON": f"{sys.executable} -m elektron",
        "DATA": str(data_folder),
        "GLUE": "",
        "RUN": str(tmp_path),
        "STEPS": "10 20",
        "ROWS": "64 4",
        "FLAGS": TINY.replace("--train.phases 4 64 4", "--watch.evaluate-rows 16 --watch.log-every 1"),
    }
    done = subprocess.run(["sh", ROOT / "runs" / "trunk.sh"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rates = {}
    for steps in (10, 20):
        lines = (tmp_path / str(steps) / "metrics.jsonl").read_text().splitlines()
        training = [record for record in map(json.loads, lines) if record["kind"] == "train"]
        rates[steps] = {record["step"]: record["learning_rate"] for record in training}
    assert (min(rates[10]), max(rates[10]), max(rates[20])) == (9, 10, 20), "the shorter one leaves after four fifths"
    assert rates[10][10] < rates[10][9] == rates[20][9] == rates[20][16] > rates[20][20]


@pytest.mark.parametrize("steps", ["10 25", "12 24", "20 10"])
def test_budgets_that_do_not_meet_the_trunk_are_refused_before_it_is_trained(steps):
    environment = os.environ | {"ELEKTRON": "echo", "DATA": "data", "GLUE": "", "STEPS": steps}
    done = subprocess.run(["sh", ROOT / "runs" / "trunk.sh"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f'STEPS="{steps}": ')


def test_what_a_model_sees_becomes_a_table(tmp_path):
    """The script itself, asked little."""
    model, eye, kept = tmp_path / "model", tmp_path / "eye", tmp_path / "kept" / "speedrun-one"
    shutil.copytree(ROOT / "src" / "elektron" / "packaged", model)
    for name, words in (("train", "She have two cats ."), ("dev", "They has a cat .")):
        (tmp_path / f"{name}.txt").write_text(
            "".join(f"{word}\t{'ci'[word[:2] == 'ha']}\n" for word in words.split()) + "\n"
        )
    pair = {"sentence_good": "The cats sleep.", "sentence_bad": "The cats sleeps.", "linguistics_term": "agreement"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair | {"UID": "one", "field": "syntax"}) + "\n")
    lists = {"1-1": {"ref": "she has two cats", "hyp_1": {"score": -1, "text": "she have two cats"}}}
    for half in ("tune", "test"):
        (tmp_path / f"{half}.json").write_text(json.dumps(lists))
    given = {"BLIMP": "pairs.jsonl", "FCE": ".", "ASR": "tune.json test.json", "SEEDS": "1", "TUNING": "--device cpu"}
    environment = os.environ | given | {"ELEKTRON": f"{sys.executable} -m elektron"}
    command = ["sh", ROOT / "runs" / "eye.sh", model, eye]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

    keep, made = script("keep"), script("tables")
    kept.mkdir(parents=True)
    (kept / "made.json").write_text(json.dumps({"what": "packaged"}))
    keep.keep_eye(eye, kept / "eye")
    header, *lines = cells(made.eye(made.read_runs(kept.parent)))
    assert header == ["percent", "packaged"]
    table = dict(lines)
    assert table["BLiMP, as it is"].startswith(("0.0 (", "100.0 ("))
    assert table["LibriSpeech, word errors, first"] == "25.00"
    seen = {"BLiMP, as calibrated", "- agreement", "FCE, F0.5", "FCE, calibration error, as it is", "FCE learned, F0.5"}
    assert seen <= set(table)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["mlm 0", "mlm 1", "electra 1", "mlm 2", "electra 2"]),
        ({"AGAINST": "0 2"}, ["mlm 0", "mlm 2", "electra 2"]),
        ({"AGAINST": "0 1", "SIDES": "electra"}, ["electra 1"]),
        ({"SIDES": "mlm"}, ["mlm 0", "mlm 1", "mlm 2"]),
    ],
)
def test_sides_and_seeds_of_the_comparison(tmp_path, given, expected):
    """The first of ELECTRA's is the record run."""
    (tmp_path / "runs").mkdir()
    for name in ("all.sh", "against-mlm.sh", "eye.sh"):
        shutil.copy(ROOT / "runs" / name, tmp_path / "runs")
    tools = {"ELEKTRON": "echo", "PYTHON": "true", "COMMIT": "abc1234", "DATA": "data", "GLUE": "glue"}
    command = ["sh", tmp_path / "runs" / "all.sh", "against"]
    done = subprocess.run(command, env=os.environ | tools | given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = [line.split() for line in done.stdout.splitlines() if line.startswith("compare ")]
    assert [f"{line[line.index('--objectives') + 1]} {line[line.index('--seed') + 1]}" for line in words] == expected


def test_parts_that_are_none_are_refused_before_anything_is_done():
    environment = os.environ | {"ELEKTRON": "echo", "COMMIT": "abc1234"}
    done = subprocess.run(["sh", ROOT / "runs" / "all.sh", "records"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("records is no part: ")


def test_google_s_weights_open_as_a_model(tmp_path):
    """As deepsa packs them, but smaller."""
    shape = EncoderConfig(layers=1, width=32, heads=2, feedforward_width=64, embedding_width=16, positions=8)
    network = Discriminator(shape, Embeddings(12, shape))
    weights = {
        name.replace("electra.", "model.model."): tensor
        for name, tensor in to_tensors(network).items()
        if name.startswith("electra.")
    }
    saved = io.BytesIO()
    torch.save({"state_dict": weights | {"model.head.weight": torch.zeros(2, 32)}}, saved)
    with zipfile.ZipFile(tmp_path / "deepsa.whl", "w") as wheel:
        wheel.writestr("deepsa/model/model.ckpt", saved.getvalue())
        wheel.writestr("deepsa/model/hf_text/config.json", json.dumps(their_config(shape, 12, "discriminator", 0)))
    (tmp_path / "vocab.txt").write_text("\n".join([*ROLES.values(), *"abcdefg"]) + "\n")
    script("drifted").main(str(tmp_path / "deepsa.whl"), str(tmp_path / "vocab.txt"), str(tmp_path / "drifted"))
    opened = open_encoder(tmp_path / "drifted")
    assert opened.tokenizer.vocab_size == 12
    for name, parameter in network.encoder.named_parameters():
        assert torch.equal(parameter, opened.encoder.get_parameter(name)), name


def test_quora_s_pairs_are_split_by_their_ids_alone(tmp_path):
    qqp, header = script("qqp"), "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    qqp.DEV = 5
    rows = [f'{number}\t0\t1\tWhat is {number}?\t"A\nquestion?"\t{number % 2}' for number in range(20)]
    found = []
    for order in (rows, rows[::-1]):
        (tmp_path / "all.tsv").write_text("\n".join([header, *order, "20\t0"]) + "\n")
        qqp.main(str(tmp_path / "all.tsv"), str(tmp_path / "QQP"))
        found.append([(tmp_path / "QQP" / f"{name}.tsv").read_text().splitlines() for name in ("dev", "train")])
    assert found[0] == found[1]
    dev, train = found[0]
    assert (len(dev), len(train)) == (1 + 5, 1 + 15)
    ids = sorted(int(line.split("\t")[0]) for line in (*dev[1:], *train[1:]))
    assert ids == list(range(20))
    assert all(len(line.split("\t")) == 6 for line in (*dev, *train))


@pytest.mark.parametrize(
    ("name", "words", "count"),
    [
        ("speedrun", ["paper"], 4),
        ("against-mlm", [], 1),
        ("ladder", [], 4),
        ("rates", [], 3),
        ("quirks", [], 7),
        ("trunk", [], 9),
        ("tasks", ["runs/small", "finetuned/small"], 2),
        ("eye", ["runs/small", "OUT"], 5),
    ],
)
def test_the_scripts_commands_parse(name, words, count, tmp_path):
    given = {
        "TEXT": "a.txt b.txt",
        "VOCAB": "train",
        "GLUE": "glue",
        "SQUAD": "squad",
        "DATA": "data",
        "BLIMP": "blimp",
    }
    environment = os.environ | given | {"FCE": "fce", "ASR": "tune.json test.json", "ELEKTRON": "echo"}
    words = [str(tmp_path / word) if word == "OUT" else word for word in words]
    command = ["sh", ROOT / "runs" / f"{name}.sh", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    commands = [line.split() for line in done.stdout.splitlines()]
    assert len(commands) == count
    parse([[word for word in words if not word.endswith(".toml")] for words in commands])
    assert all((ROOT / word).exists() for words in commands for word in words if word.endswith(".toml"))
