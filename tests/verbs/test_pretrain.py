"""The road as its user walks it: real commands in real processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from conftest import documents
from elektron.config import read_toml
from elektron.data.files import write_json
from elektron.data.shards import read_index
from elektron.train.checkpoint import all_steps, load_newest
from elektron.train.metrics import read
from elektron.verbs.pretrain import configure

transformers.logging.set_verbosity_error()

FLAGS = (
    "--model.layers 1 --model.width 32 --model.heads 2 --model.feedforward-width 64 --model.embedding-width 16 "
    "--model.positions 32 --model.dropout 0.1 --model.attention-dropout 0.1 --schedule.warmup-steps 3 "
    "--prepare.vocab-size 128 --prepare.processes 1 --prepare.held-out 0.05 "
    "--watch.log-every 3 --watch.evaluate-every 4 --watch.evaluate-rows 8 --watch.checkpoint-every 5 --device cpu"
).split()
TEN_STEPS = ["--train.phases", "10", "16", "4"]


def elektron(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elektron", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    print(done.stdout, done.stderr)  # shown by pytest where a test fails
    done.check_returncode()
    return done


@pytest.fixture(scope="module")
def finished(tmp_path_factory, text_file) -> Path:
    """A run from text to folders, in one command."""
    run = tmp_path_factory.mktemp("runs") / "tales"
    elektron("pretrain", "--corpus", text_file, "--run", run, *FLAGS, *TEN_STEPS)
    return run


def test_one_command_from_text_to_hugging_face_folders(finished, text_file):
    assert {path.name for path in finished.iterdir()} == {
        "checkpoints", "config.toml", "data", "discriminator", "generator", "metrics.jsonl", "report.html", "tokenizer",
    }  # fmt: skip
    tokenizer = transformers.AutoTokenizer.from_pretrained(finished / "discriminator")
    discriminator = transformers.ElectraForPreTraining.from_pretrained(finished / "discriminator")
    generator = transformers.ElectraForMaskedLM.from_pretrained(finished / "generator")
    inputs = tokenizer("The old cat sees a dog.", return_tensors="pt")
    assert discriminator(**inputs).logits.shape == inputs.input_ids.shape
    assert generator(**inputs).logits.shape == (*inputs.input_ids.shape, tokenizer.vocab_size)
    card = (finished / "discriminator" / "README.md").read_text()
    assert "| steps | 10 of 10 |" in card
    assert "held-out detection AUC" in card
    records = read(finished)
    assert [record["step"] for record in records if record["kind"] == "train"] == [3, 6, 9, 10]
    assert [record["step"] for record in records if record["kind"] == "held"] == [4, 8, 10]


def test_sigterm_leaves_cleanly_and_the_same_command_goes_on(tmp_path, finished):
    run = tmp_path / "stopped"
    arguments = ["pretrain", "--data", finished / "data", "--run", run, *FLAGS, "--train.phases", "100000", "16", "4"]
    command = [sys.executable, "-m", "elektron", *map(str, arguments)]
    for _ in range(2):
        steps = all_steps(run)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while all_steps(run) == steps:
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        out, error = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM
        assert error == ""
        assert "stopped by SIGTERM; the same command goes on from here" in out
        assert max(all_steps(run)) > max(steps, default=0)
    logged = [record["step"] for record in read(run) if record["kind"] == "train"]
    assert logged == list(range(3, max(logged) + 1, 3))


def test_a_run_s_config_repeats_it_and_its_folder_is_enough_to_go_on(tmp_path, finished):
    copy = tmp_path / "copy"
    elektron("pretrain", finished / "config.toml", "--run", copy, "--data", finished / "data")
    saved, again = load_newest(finished), load_newest(copy)
    assert saved is not None
    assert again is not None
    assert all(torch.equal(saved.model[name], again.model[name]) for name in saved.model)
    config = configure(["--run", str(finished)], "elektron pretrain", "")
    assert config.train.phases == ((10, 16, 4),)
    assert config.model.width == 32


def test_a_run_is_named_after_its_preset():
    def run(*flags: str) -> str:
        return str(configure(["--data", "somewhere", *flags], "elektron pretrain", "").run)

    assert run() == "runs/tiny"
    assert run("--preset", "small", "paper") == "runs/small-paper"
    assert run("--preset", "small", "--run", "elsewhere") == "elsewhere"


def test_what_a_run_may_be_resumed_with(finished):
    elektron("pretrain", "--run", finished, "--watch.log-every", 2, "--train.accumulate", 2)
    for flag, value in (("--objective.mask-rate", "0.3"), ("--seed", "1"), ("--model.layers", "2")):
        with pytest.raises(subprocess.CalledProcessError) as caught:
            elektron("pretrain", "--run", finished, flag, value)
        assert caught.value.returncode == 2
        assert "is a run with another config" in caught.value.stderr
        assert flag[2:].replace("-", "_") in caught.value.stderr
        assert "Traceback" not in caught.value.stderr


def evaluated(run: Path) -> dict[str, float]:
    """What `evaluate` finds, which is what the run itself found at its end."""
    found = json.loads(elektron("evaluate", run, "--rows", 8, "--json").stdout)
    held = [record for record in read(run) if record["kind"] == "held"][-1]
    for name, value in held.items():
        if isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=1e-5), name
    return found


def test_evaluate_gives_the_run_s_own_numbers(finished, tmp_path):
    found = evaluated(finished)
    elektron("export", finished, "--to", tmp_path / "out")
    flags = ["--data", finished / "data", "--length", 16, "--rows", 8]
    exported = json.loads(elektron("evaluate", tmp_path / "out", *flags, "--json").stdout)
    assert exported == pytest.approx(found, rel=1e-5)
    assert "detection auc" in elektron("evaluate", tmp_path / "out", *flags).stdout


def test_evaluate_knows_how_frequent_words_are(finished, tmp_path):
    flags = ["--objective.generator", "unigram", "--objective.masking", "frequency"]
    elektron("pretrain", "--data", finished / "data", "--run", tmp_path / "run", *flags, *FLAGS, *TEN_STEPS)
    evaluated(tmp_path / "run")


def test_export_in_half_the_space(finished, tmp_path):
    """With what only its maker knows, and what was calibrated."""
    run = shutil.copytree(finished, tmp_path / "run")
    write_json(run / "calibration.json", {"temperature": 2.0})
    elektron("export", run, "--to", tmp_path / "whole")
    words = ["--weights", "float16", "--licence", "cc-by-sa-4.0", "--text", "It has read tales."]
    elektron("export", run, "--to", tmp_path / "half", *words)
    for folder in ("discriminator", "generator"):
        whole, half = (load_file(tmp_path / kind / folder / "model.safetensors") for kind in ("whole", "half"))
        assert whole.keys() == half.keys()
        assert all(torch.equal(half[name], whole[name].half()) for name in whole)
        assert json.loads((tmp_path / "half" / folder / "config.json").read_text())["dtype"] == "float16"
        card = (tmp_path / "half" / folder / "README.md").read_text()
        assert card.startswith("---\nlicense: cc-by-sa-4.0\n")
        assert " It has read tales.\n" in card
        assert "license" not in (tmp_path / "whole" / folder / "README.md").read_text()
        assert (tmp_path / "half" / folder / "calibration.json").exists() == (folder == "discriminator")
    opened = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "half" / "discriminator")
    assert opened.dtype == torch.float16


def test_export_with_onnx(finished, tmp_path):
    out = elektron("export", finished, "--to", tmp_path, "--onnx").stdout
    assert "logits within" in out
    assert (tmp_path / "discriminator" / "model.onnx").exists()


def test_report_and_plan(finished):
    out = elektron("report", finished).stdout.strip()
    page = Path(out).read_text()
    assert page.count("<svg") == 8
    assert "<script src" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    plan = elektron("plan", "--preset", "small").stdout
    assert "14,19" in plan
    assert "70.2 million" in plan
    assert "16,384,000,000 in 1,000,000 steps" in plan


@pytest.mark.parametrize("source", ["run", "folder", "discriminator"])
def test_going_on_from_weights(tmp_path, finished, source):
    """From a run, from an exported folder, from a discriminator alone: its shapes, its tokenizer, its weights."""
    (tmp_path / "new.txt").write_text("\n\n".join(documents(60, seed=5)))
    path = {"run": finished, "folder": tmp_path / "export", "discriminator": finished / "discriminator"}[source]
    if source == "folder":
        elektron("export", finished, "--to", path)
    run = tmp_path / "adapted"
    flags = "--schedule.learning-rate 1e-30 --train.phases 2 16 4 --prepare.processes 1 --device cpu".split()
    out = elektron("pretrain", "--init-from", path, "--corpus", tmp_path / "new.txt", "--run", run, *flags).stdout
    old, new = load_newest(finished), load_newest(run)
    assert old is not None
    assert new is not None
    kept = [name for name in old.model if source != "discriminator" or name.startswith("discriminator")]
    assert all(torch.equal(old.model[name], new.model[name]) for name in kept)
    assert set(old.model) == set(new.model)
    assert read_toml(run / "config.toml")["model"]["width"] == 32
    assert "begins with" in out
    assert ("generator begins anew" in out) == (source == "discriminator")


def test_a_generator_that_was_trained_before_stays_as_it_is(tmp_path, finished):
    """Alone, beside a discriminator that begins anew; stopped and taken up again too."""
    shape = read_toml(finished / "config.toml")["model"]
    flags = [word for name in ("width", "heads", "layers") for word in (f"--model.{name}", shape[name])]
    flags += [
        "--model.feedforward-width",
        shape["feedforward_width"],
        "--model.embedding-width",
        shape["embedding_width"],
    ]
    flags += ["--model.positions", shape["positions"], "--objective.generator", "frozen", "--objective.sharing", "none"]
    flags += ["--objective.first-temperature", 2, "--init-generator", finished, "--data", finished / "data"]
    flags += "--start original --schedule.warmup-steps 1 --watch.evaluate-rows 4 --device cpu".split()
    run = tmp_path / "frozen"
    out = elektron("pretrain", *flags, "--run", run, "--train.phases", 3, 16, 4).stdout
    assert f"begins with the generator of {finished / 'generator'}, which stays as it is" in out
    old, new = (load_file(folder / "generator" / "model.safetensors") for folder in (finished, run))
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)
    said = elektron("pretrain", *flags, "--run", run, "--train.phases", 3, 16, 4).stdout
    assert "all 3 steps are done already" in said


def test_going_on_from_transformers_weights_with_a_generator(tmp_path, finished, text_file):
    """Folders that transformers wrote, and a generator that is no quarter of the discriminator."""
    for role, kind in (
        ("discriminator", transformers.ElectraForPreTraining),
        ("generator", transformers.ElectraForMaskedLM),
    ):
        kind.from_pretrained(finished / role).save_pretrained(tmp_path / role)
        transformers.AutoTokenizer.from_pretrained(finished / role).save_pretrained(tmp_path / role)
    flags = "--schedule.learning-rate 1e-30 --train.phases 2 16 4 --prepare.processes 1 --device cpu".split()
    elektron(
        "pretrain", "--init-from", tmp_path / "discriminator", "--init-generator", tmp_path / "generator",
        "--data", finished / "data", "--run", tmp_path / "run", *flags,
    )  # fmt: skip
    old, new = load_newest(finished), load_newest(tmp_path / "run")
    assert old is not None
    assert new is not None
    assert all(torch.equal(old.model[name], new.model[name]) for name in old.model)


def test_standard_input_can_train_a_tokenizer(tmp_path):
    text = "\n\n".join(documents(60))
    out = elektron(
        "prepare", "--corpus", "-", "--out", tmp_path / "data", "--vocab-size", 100, "--processes", 1, input=text
    )
    assert "60 documents" in out.stdout
    again = elektron(
        "prepare", "--corpus", "-", "--out", tmp_path / "data", "--vocab-size", 100, "--processes", 1, input=text
    )
    assert "training a tokenizer" in out.stdout
    assert "training a tokenizer" not in again.stdout


def test_loss_that_is_not_finite_is_told_in_words(tmp_path, finished):
    arguments = ["pretrain", "--data", finished / "data", "--run", tmp_path / "wild", *FLAGS, *TEN_STEPS]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        elektron(*arguments, "--schedule.learning-rate", "1e30", "--optimizer.clip-norm", "0", env=os.environ)
    assert caught.value.returncode == 2
    assert "not finite" in caught.value.stderr
    assert "Traceback" not in caught.value.stderr


def test_a_run_that_has_begun_needs_its_corpus_no_more(tmp_path, text_file):
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_bytes(text_file.read_bytes())
    elektron("pretrain", "--corpus", text, "--run", run, *FLAGS, *TEN_STEPS)
    text.unlink()
    assert "all 10 steps are done already" in elektron("pretrain", "--run", run).stdout


def test_a_run_without_a_checkpoint_keeps_its_config(tmp_path, finished):
    run = tmp_path / "young"
    run.mkdir()
    (run / "config.toml").write_bytes((finished / "config.toml").read_bytes())
    config = configure(["--run", str(run)], "elektron pretrain", "")
    assert (config.model.width, config.train.phases) == (32, ((10, 16, 4),))
    assert configure(["--run", str(run), "--preset", "small"], "elektron pretrain", "").model.width == 256


def test_a_corpus_that_has_grown_keeps_its_tokenizer(tmp_path):
    texts, out = tmp_path / "texts", tmp_path / "out"
    texts.mkdir()
    flags = ["--corpus", texts, "--out", out, "--vocab-size", 128, "--processes", 1]
    (texts / "a.txt").write_text("\n\n".join(documents(50)))
    elektron("prepare", *flags)
    before = (out / "tokenizer.json").read_bytes(), read_index(out)
    (texts / "b.txt").write_text("\n\n".join(documents(50, seed=1)))
    elektron("prepare", *flags)
    assert (out / "tokenizer.json").read_bytes() == before[0]
    assert read_index(out).documents == 2 * before[1].documents


def test_a_given_tokenizer_is_not_taken_for_a_trained_one(tmp_path, text_file, finished):
    """Nor is text tokenised with the wrong one after a preparation that was cut off."""
    out = tmp_path / "out"
    flags = ["--corpus", text_file, "--out", out, "--processes", 1]
    elektron("prepare", *flags, "--vocab-size", 100)
    trained = (out / "tokenizer.json").read_bytes()
    (out / "index.json").unlink()
    elektron("prepare", *flags, "--tokenizer", finished / "tokenizer")
    (out / "index.json").unlink()
    elektron("prepare", *flags, "--vocab-size", 100)
    assert (out / "tokenizer.json").read_bytes() == trained


WSD = ["--schedule.kind", "wsd", "--schedule.decay-share", "0.25"]


@pytest.fixture(scope="module")
def trunk(tmp_path_factory, finished) -> Path:
    run = tmp_path_factory.mktemp("runs") / "trunk"
    flags = [*FLAGS, *WSD, "--train.phases", "20", "16", "4", "--watch.keep-checkpoints", "9"]
    elektron("pretrain", "--data", finished / "data", "--run", run, *flags)
    return run


def test_a_branch_ends_as_the_shorter_run_does(tmp_path, finished, trunk):
    """Bit for bit, and with the same records from there on."""
    short = [*WSD, "--train.phases", "12", "16", "4"]  # decays from step 9 on
    branch = trunk / "checkpoints" / "step-00000005"
    elektron("pretrain", "--run", tmp_path / "branch", "--branch", branch, *short)
    elektron("pretrain", "--data", finished / "data", "--run", tmp_path / "short", *FLAGS, *short)
    ours, theirs = load_newest(tmp_path / "branch"), load_newest(tmp_path / "short")
    assert ours is not None
    assert theirs is not None
    assert ours.step == theirs.step == 12
    for tensors, others in ((ours.model, theirs.model), (ours.optimizer, theirs.optimizer)):
        assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
    losses = [
        {r["step"]: r["loss"] for r in read(tmp_path / name) if r["kind"] == "train"} for name in ("branch", "short")
    ]
    assert losses[0] == {step: loss for step, loss in losses[1].items() if step > 5}


@pytest.mark.parametrize(
    ("step", "flags", "message"),
    [
        (15, [*WSD, "--train.phases", "18", "16", "4"], "from step 14 on"),  # 18 steps decay earlier than 20
        (5, [*WSD, "--train.phases", "12", "16", "2"], "from step 0 on"),
        (5, [*WSD, "--train.phases", "5", "16", "4"], "these --train.phases end at step 5"),
        (5, [*WSD, "--train.phases", "12", "16", "4", "--seed", "1"], "another config: seed is 0 there, 1 now"),
        (5, ["--schedule.learning-rate", "1e-4"], "from step 0 on"),
    ],
)
def test_a_branch_that_would_have_come_another_way_is_refused(tmp_path, trunk, step, flags, message):
    branch = trunk / "checkpoints" / f"step-{step:08d}"
    command = [sys.executable, "-m", "elektron", "pretrain", "--run", tmp_path / "b", "--branch", branch, *flags]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "b" / "config.toml").exists()


def test_a_branch_of_no_checkpoint_is_refused(tmp_path, trunk):
    for branch in (trunk, trunk / "checkpoints" / "step-00000007", tmp_path):
        with pytest.raises(ValueError, match="is no checkpoint of a run"):
            configure(["--run", str(tmp_path / "b"), "--branch", str(branch)], "elektron pretrain", "")
