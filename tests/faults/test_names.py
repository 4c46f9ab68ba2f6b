"""Names cannot lead out of a folder: not in an index, not as links that somebody has left in the way."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from elektron.cli import main
from elektron.data.files import sealed
from faults.commands import Commands
from faults.conftest import MODEL, PHASES, contents, verbs
from faults.counting import Faults

OUTSIDE = ("../outside.bin", "../../outside.bin", "/outside.bin", "inside/../../outside.bin", "..", "")


def test_an_index_that_names_what_is_elsewhere(prepared: Path, commands: Commands, faults: Faults, tmp_path):
    """A shard with the right checksum, but not in the folder."""
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    index = json.loads((data / "index.json").read_text())
    del index["sha256"]
    shutil.copy(data / "shard-00000.bin", tmp_path / "outside.bin")
    for name in (*OUTSIDE, str(tmp_path / "outside.bin")):
        index["shards"][0]["file"] = name
        (data / "index.json").write_text(json.dumps(sealed(index)))
        with faults.inject("a name that leads out of a folder"):
            ended = commands.run("pretrain", "--data", data, "--run", tmp_path / "run", *MODEL, *PHASES)
            assert ended.code == 2, ended.said
            assert f"index.json: names {name!r}, which is no shard in this folder" in ended.said


def test_weights_in_parts_that_are_elsewhere(finished: Path, commands: Commands, faults: Faults, tmp_path):
    """Only model.safetensors is read, whatever an index beside it names."""
    folder = tmp_path / "folder"
    shutil.copytree(finished / "discriminator", folder)
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    parts = {"metadata": {}, "weight_map": {"electra.embeddings.word_embeddings.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(parts))
    with faults.inject("a name that leads out of a folder"):
        ended = commands.run("detect", "--model", folder)
        assert ended.code == 2
        assert "model.safetensors is missing" in ended.said


LINKS = {
    "prepare": "index.json .index.json.unfinished tokenizer.json .tokenizer.json.unfinished shard-00000.bin "
    ".shard-00001.bin.unfinished .tokenizer.recipe.json.unfinished shard-00099.bin",
    "pretrain": "config.toml .config.toml.unfinished metrics.jsonl .metrics.jsonl.unfinished report.html "
    ".report.html.unfinished checkpoints/.unfinished-step-00000004 checkpoints/.discarded-step-00000004 "
    "tokenizer/.tokenizer.json.unfinished discriminator .unfinished-discriminator",
    "export": "discriminator .unfinished-discriminator .discarded-discriminator generator",
    "finetune": "results.json .results.json.unfinished .results.md.unfinished cola/seed-0 cola/.unfinished-seed-0",
}


@pytest.mark.parametrize("verb", verbs("prepare", "export"))
def test_links_left_where_something_is_written(verb, undisturbed, commands: Commands, faults: Faults, tmp_path):
    """Whatever the command makes of them, the file or folder that they lead to stays as it is."""
    whole, names = undisturbed(verb), LINKS[verb].split()
    for name in names if faults.is_full else faults.random.sample(names, 1):
        for is_folder in (True, False):
            victim = tmp_path / "victim"
            shutil.rmtree(victim, ignore_errors=True)
            victim.mkdir()
            (victim / "precious.txt").write_text("precious")
            link = whole.out / name
            link.parent.mkdir(parents=True)
            link.symlink_to(victim if is_folder else victim / "precious.txt")
            with faults.inject(f"a link left in the way of {verb}"):
                ended = commands.run(*whole.words)
                assert ended.code in (0, 2), ended.said
                assert "Traceback" not in ended.said, ended.said
                faults.same({"precious.txt": b"precious"}, contents(victim))
            shutil.rmtree(whole.out)


def test_standard_input_is_not_kept_through_a_link(monkeypatch, capsys, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "precious.txt").write_text("precious")
    (tmp_path / "out" / "stdin.txt").symlink_to(tmp_path / "precious.txt")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat sees a dog\n\nand a bird\n" * 50)))
    words = ["--corpus", "-", "--out", str(tmp_path / "out"), "--vocab-size", "64", "--processes", "1"]
    monkeypatch.setattr(sys, "argv", ["elektron", "prepare", *words])
    main()
    assert (tmp_path / "precious.txt").read_text() == "precious"


def test_folders_of_links_are_read(finished: Path, commands: Commands, glue: Path, tmp_path):
    """As the Hub's cache has them."""
    for name in ("discriminator", "generator"):
        (tmp_path / "model" / name).mkdir(parents=True)
        for path in (finished / name).iterdir():
            (tmp_path / "model" / name / path.name).symlink_to(path)
    text = glue / "CoLA" / "dev.tsv"
    expected = commands.done("detect", text, "--model", finished / "discriminator").said
    assert commands.done("detect", text, "--model", tmp_path / "model" / "discriminator").said == expected
