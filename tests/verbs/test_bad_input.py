"""Every mistake a user can make gets a sentence with the value and what to do, exit code 2, and no traceback."""

import errno
import gzip
import json
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from elektron import cli
from elektron.data.tokenizer import ROLES
from elektron.train.checkpoint import FOLDER, all_steps
from elektron.verbs import pretrain

FLAGS = (
    "--model.layers 1 --model.width 32 --model.heads 2 --model.feedforward-width 64 --model.embedding-width 16 "
    "--model.positions 32 --prepare.vocab-size 128 --prepare.processes 1 --train.phases 4 16 4 "
    "--watch.checkpoint-every 2 --watch.evaluate-rows 4 --device cpu"
).split()


@pytest.fixture
def elektron(monkeypatch, capsys, tmp_path):
    """Run a command in this process, in an empty folder: (exit code, what it said)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["elektron", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.err + said.out

    return run


@pytest.fixture
def finished(tmp_path, elektron, text_file) -> Path:
    code, _ = elektron("pretrain", "--corpus", text_file, "--run", tmp_path / "run", *FLAGS)
    assert code == 0
    return tmp_path / "run"


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


TRUNCATED = gzip.compress(os.urandom(9999))[:5000]
CORPORA = {
    "missing": (lambda t: t / "nowhere", "no such corpus", "nowhere"),
    "empty folder": (lambda t: t, "no text in folder", ""),
    "empty file": (lambda t: write(t / "a.txt", b"\n\n"), "corpus is empty", ""),
    "binary": (lambda t: write(t / "a.txt", b"\x89PNG\r\n\x1a\n\0\0"), "byte 0 is not UTF-8", "--errors replace"),
    "latin-1": (lambda t: write(t / "a.txt", "gr\u00fcn".encode("latin-1")), "a.txt: byte 2", "--errors replace"),
    "nul": (lambda t: write(t / "a.txt", b"abc\0"), "byte 3 is NUL", "--errors replace"),
    "truncated gzip": (lambda t: write(t / "a.txt.gz", TRUNCATED), "a.txt.gz: damaged", "replace the file"),
    "no gzip": (lambda t: write(t / "a.txt.gz", b"plain text"), "a.txt.gz: damaged", "replace the file"),
    "parquet": (lambda t: write(t / "a.parquet", b"PAR1 nothing PAR1"), "a.parquet: damaged", "replace the file"),
    "jsonl": (lambda t: write(t / "a.jsonl", b'{"text": 1}\n'), "a.jsonl, line 1: 'text' is int", "--text-field"),
    "one token": (lambda t: write(t / "a.txt", b"cat"), "corpus is too small", ""),
}


@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.parametrize("verb", ["prepare", "pretrain"])
def test_corpora(tmp_path, elektron, name, verb):
    make, what, hint = CORPORA[name]
    (tmp_path / "in").mkdir()
    spec = make(tmp_path / "in")
    flags = ["--out", tmp_path / "out", "--processes", 1] if verb == "prepare" else ["--run", tmp_path / "out", *FLAGS]
    code, said = elektron(verb, "--corpus", spec, *flags)
    assert code == 2
    assert what in said
    assert hint in said
    assert not list(tmp_path.rglob("index.json"))


def test_a_mistyped_corpus_does_not_spoil_the_run_folder(tmp_path, elektron, text_file):
    assert elektron("pretrain", "--corpus", tmp_path / "tpyo.txt", "--run", tmp_path / "run", *FLAGS)[0] == 2
    assert elektron("pretrain", "--corpus", text_file, "--run", tmp_path / "run", *FLAGS)[0] == 0


def test_replacing_bad_bytes(tmp_path, elektron):
    write(tmp_path / "a.txt", b"the cat \xff sees\0a dog and a bird\n\nand another document")
    code, _ = elektron(
        "prepare", "--corpus", tmp_path, "--out", tmp_path / "out", "--processes", 1, "--errors", "replace"
    )
    assert code == 0


def test_a_corpus_smaller_than_a_batch(tmp_path, elektron, text_file):
    code, said = elektron(
        "pretrain", "--corpus", text_file, "--run", tmp_path / "run", *FLAGS, "--train.phases", 4, 16, 99999
    )
    assert code == 2
    assert "smaller than one batch" in said
    assert "99999" in said


@pytest.mark.parametrize("damage", ["flipped", "truncated", "removed"])
def test_damaged_shards(finished, elektron, tmp_path, damage):
    (shard,) = (finished / "data").glob("shard-*.bin")
    content = bytearray(shard.read_bytes())
    if damage == "removed":
        shard.unlink()
    else:
        shard.write_bytes(content[:-3] if damage == "truncated" else content[:-3] + b"\xff" + content[-2:])
    code, said = elektron("pretrain", "--data", finished / "data", "--run", tmp_path / "other", *FLAGS)
    assert code == 2
    assert shard.name in said
    assert "elektron prepare" in said


def test_a_tokenizer_other_than_the_shards(finished, elektron, tmp_path):
    folder = finished / "data"
    code, said = elektron(
        "prepare", "--corpus", finished / "config.toml", "--out", folder, "--vocab-size", 99, "--processes", 1
    )
    assert code == 2
    assert "trained with another vocab_size" in said
    code, said = elektron(
        "pretrain", "--init-from", finished, "--data", folder, "--run", tmp_path / "fine", "--train.phases", 2, 16, 4
    )
    assert code == 0
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"cat"', '"cta"'))
    code, said = elektron("pretrain", "--data", folder, "--run", tmp_path / "other", *FLAGS)
    assert code == 2
    assert "not the tokenizer these shards were made with" in said


def test_weights_of_another_tokenizer(finished, elektron, tmp_path, text_file):
    elektron("prepare", "--corpus", text_file, "--out", tmp_path / "data", "--vocab-size", 90, "--processes", 1)
    code, said = elektron(
        "pretrain",
        "--init-from",
        finished,
        "--data",
        tmp_path / "data",
        "--run",
        tmp_path / "other",
        "--train.phases",
        2,
        16,
        4,
    )
    assert code == 2
    assert "another tokenizer" in said


def test_a_vocabulary_without_mask(tmp_path, elektron, text_file):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([name for name in ROLES.values() if name != "[MASK]"] + ["cat"]))
    code, said = elektron("prepare", "--corpus", text_file, "--out", tmp_path / "out", "--tokenizer", path)
    assert code == 2
    assert "vocab.txt: the vocabulary has no [MASK]" in said


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--model.heads", "3"], "3 attention heads do not divide a width of 32"),
        (["--objective.generator-width", "0.85"], "generator's shape is impossible"),
        (["--train.phases", "4", "64", "4"], "rows of 64 tokens are longer than the model's 32 positions"),
        (["--train.phases", "4", "4", "4"], "rows of 4 tokens are too short"),
        (
            ["--train.phases", "4", "32", "4", "--train.short", "0.9"],
            "too short (--train.short cuts them)",
        ),
        (["--train.accumulate", "3"], "does not divide a batch of 4 rows"),
        (["--objective.mask-rate", "1.5"], "between 0 and 1"),
        (["--model.dropout", "1"], "dropout and attention_dropout lie in"),
        (["--device", "cuda"], "no CUDA device"),
    ],
)
def test_impossible_settings(tmp_path, elektron, text_file, flags, what):
    if flags[0] == "--device" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    code, said = elektron("pretrain", "--corpus", text_file, "--run", tmp_path / "run", *FLAGS, *flags)
    assert code == 2
    assert what in " ".join(said.split())


def test_flags_and_keys_nobody_knows(tmp_path, elektron):
    code, said = elektron("pretrain", "--objective.mask-rat", "0.2")
    assert code == 2
    assert "--objective.mask-rate" in said
    config = tmp_path / "config.toml"
    for text, what in [
        ("[objective]\nmask_rat = 0.2", "unknown key 'objective.mask_rat'; did you mean 'mask_rate'?"),
        ("sede = 1", "unknown key 'sede'; did you mean 'seed'?"),
        ("seed = 'one'", "seed = 'one' is not a whole number"),
        ("start = 'maybe'", "start = 'maybe' is none of 'original', 'local'"),
        ("preset = 'small'", "preset = 'small' is not a list"),
        ("model = 3", "model = 3 is not a table of settings"),
        ("[train]\nphases = [[1, 2]]", "must have 3 entries"),
        ("preset = ['huge']", "'huge' is none of"),
        ("not toml", "not TOML"),
    ]:
        config.write_text(text)
        code, said = elektron("pretrain", config)
        assert code == 2
        assert what in said
        assert "config.toml" in said
    code, said = elektron("pretrain", tmp_path / "none.toml")
    assert code == 2
    assert "no such config file" in said


def test_verbs_nobody_knows(elektron):
    code, said = elektron("pretrian")
    assert code == 2
    assert "did you mean 'pretrain'?" in said


def test_a_run_folder_of_another_config(finished, elektron):
    code, said = elektron("pretrain", "--run", finished, "--seed", 5)
    assert code == 2
    assert "seed is 0 there, 5 now" in said
    assert "--run" in said


def test_a_config_that_was_changed_by_hand(finished, elektron):
    path = finished / "config.toml"
    path.write_text(path.read_text().replace("feedforward_width = 64", "feedforward_width = 48"))
    for words in (("pretrain", "--run", finished), ("export", finished), ("pretrain", "--init-from", finished)):
        code, said = elektron(*words)
        assert code == 2
        assert "config.toml: damaged, or changed by hand" in said


def test_a_damaged_checkpoint(finished, elektron):
    newest = finished / FOLDER / "step-00000004" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    for arguments in (("pretrain", "--run", finished), ("export", finished), ("evaluate", finished)):
        code, said = elektron(*arguments)
        assert code == 2
        assert "model.safetensors: damaged" in said
        assert "to go on from step 2" in said


def test_a_full_disk_while_writing_a_checkpoint(tmp_path, elektron, text_file, monkeypatch):
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if "unfinished-step-00000004" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    code, said = elektron("pretrain", "--corpus", text_file, "--run", tmp_path / "run", *FLAGS)
    assert code == 2
    assert "No space left on device" in said
    assert "the newest whole checkpoint is step 2" in said
    assert all_steps(tmp_path / "run") == [2]
    monkeypatch.setattr(os, "fsync", real)
    assert elektron("pretrain", "--run", tmp_path / "run")[0] == 0


def test_folders_that_are_no_runs(tmp_path, elektron):
    for verb in ("export", "evaluate", "report"):
        code, said = elektron(verb, tmp_path)
        assert code == 2
        assert str(tmp_path) in said
    code, said = elektron("pretrain", "--init-from", tmp_path, "--run", tmp_path / "x")
    assert code == 2
    assert "neither a run nor a Hugging Face folder" in said


def test_a_hugging_face_folder_that_does_not_fit(finished, elektron, tmp_path):
    folder = finished / "discriminator"
    tensors = load_file(folder / "model.safetensors")
    (folder / "manifest.json").unlink()
    save_file(tensors | {"electra.surprise": torch.zeros(1)}, folder / "model.safetensors")
    flags = ["--data", finished / "data", "--run", tmp_path / "x", "--train.phases", 2, 16, 4]
    code, said = elektron("pretrain", "--init-from", folder, *flags)
    assert code == 2
    assert "no place for: electra.surprise" in said
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    code, said = elektron("pretrain", "--init-from", folder, *flags)
    assert code == 2
    assert "hidden_act is 'relu'" in said


def test_a_traceback_for_those_who_ask(tmp_path, elektron, monkeypatch):
    monkeypatch.setenv(cli.TRACEBACK, "1")
    with pytest.raises(ValueError, match="no such corpus"):
        elektron("prepare", "--corpus", tmp_path / "none")


def test_configuring_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = pretrain.configure(["--preset", "small", "paper"], "elektron pretrain", "")
    assert (config.objective.draws, config.objective.keep_rate) == ("with-replacement", 0.15)
    assert (config.optimizer.bias_correction, config.schedule.kind) == (False, "product")
    assert (config.model.width, config.schedule.learning_rate) == (256, 5e-4)
    assert list(tmp_path.iterdir()) == []


def test_flags_are_checked_against_the_preset_they_are_for(elektron):
    for flags in (["--model.heads", 24], ["--train.accumulate", 256]):
        assert elektron("plan", "--preset", "base", *flags)[0] == 0
    code, said = elektron("plan", "--preset", "base", "--model.heads", 5)
    assert code == 2
    assert "768" in said
    assert "default: 768" in elektron("plan", "--preset", "base", "--help")[1]


def test_corpora_in_two_flags(elektron, tmp_path, text_file):
    code, said = elektron("prepare", "--corpus", text_file, "--corpus", text_file, "--out", tmp_path / "out")
    assert code == 2
    assert "--corpus is given more than once" in said


def test_plans_for_data_that_is_not_there(elektron, tmp_path):
    code, said = elektron("plan", "--data", tmp_path / "nowhere")
    assert code == 2
    assert "holds no prepared data" in said


def test_shapes_other_than_those_of_the_weights(elektron, tmp_path, finished):
    flags = ["--run", tmp_path / "other", "--train.phases", 2, 16, 4]
    code, said = elektron("pretrain", "--init-from", finished, "--model.width", 64, *flags)
    assert code == 2
    assert "model.width is 32 there, 64 now" in said
    code, said = elektron("pretrain", "--init-generator", finished / "generator", *flags)
    assert code == 2
    assert "needs --init-from" in said
    assert not (tmp_path / "other").exists()


def test_a_path_that_is_a_file(elektron, tmp_path, text_file):
    code, said = elektron("pretrain", "--corpus", text_file, "--run", text_file, *FLAGS)
    assert code == 2
    assert f"{text_file} is a file" in said


def test_evaluating_nothing(elektron, finished):
    code, said = elektron("evaluate", finished, "--rows", 0)
    assert code == 2
    assert "--rows" in said
    code, said = elektron("evaluate", finished / "discriminator")
    assert code == 2
    assert f"{finished} is one" in said
