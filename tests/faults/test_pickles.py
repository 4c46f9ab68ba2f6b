"""Nothing that is loaded is run: a pickle that would leave a mark is planted wherever something is read."""

import ast
import io
import os
import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import documents
from elektron.data.files import MANIFEST
from faults.commands import Commands
from faults.conftest import MODEL, TUNING
from faults.counting import Faults

SOURCE = Path(__file__).parents[2] / "src" / "elektron"


class Bait:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.mkdir, (str(self._mark), 0o700)


def poisons(mark: Path) -> dict[str, bytes]:
    """As pickle, torch and numpy write it."""
    zipped, array = io.BytesIO(), io.BytesIO()
    torch.save({"weight": torch.zeros(1), "bait": Bait(mark)}, zipped)
    np.save(array, np.array([Bait(mark)], dtype=object), allow_pickle=True)
    return {"pickle": pickle.dumps(Bait(mark)), "torch": zipped.getvalue(), "numpy": array.getvalue()}


def test_the_bait_is_poisonous(tmp_path):
    for number, (kind, content) in enumerate(poisons(tmp_path / "mark").items()):
        file = io.BytesIO(content)
        if kind == "pickle":
            pickle.load(file)
        elif kind == "torch":
            torch.load(file, weights_only=False)
        else:
            np.load(file, allow_pickle=True)
        assert (tmp_path / "mark").exists(), number
        (tmp_path / "mark").rmdir()


BESIDE = ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "model.pkl")
"""Names under which other programs leave pickles in such folders, and load them."""
READ = {
    "run": (
        "config.toml metrics.jsonl calibration.json tokenizer/tokenizer.json tokenizer/tokenizer_config.json "
        "tokenizer/special_tokens_map.json checkpoints/step-00000030/model.safetensors "
        "checkpoints/step-00000030/optimizer.safetensors checkpoints/step-00000030/state.json "
        "checkpoints/step-00000030/manifest.json"
    ),
    "exported": (
        "discriminator/model.safetensors discriminator/config.json discriminator/tokenizer.json "
        "discriminator/tokenizer_config.json discriminator/calibration.json discriminator/manifest.json "
        "discriminator/special_tokens_map.json generator/model.safetensors generator/config.json"
    ),
    "data": "index.json tokenizer.json tokenizer.recipe.json shard-00000.bin",
    "glue": "CoLA/train.tsv CoLA/dev.tsv",
    "corpus": "a.txt b.jsonl c.parquet d.txt.gz e.jsonl.bz2 f.parquet.xz g.txt.zst",
}
PLACES = [(folder, name) for folder, names in READ.items() for name in names.split()]


def readers(folder: str, path: Path, finished: Path, prepared: Path, glue: Path, out: Path) -> list[list[object]]:
    """The commands that read from a folder that stands at `path`."""
    tune = ["--data", glue, "--out", out, *TUNING, "--seeds", 1, "--recipe.epochs", 1, "--keep", "none"]
    begin = ["pretrain", "--data", prepared, "--run", out, "--train.phases", 1, 16, 4]
    text = ["--tokenizer", finished / "tokenizer", "--processes", 1, "--out", out]
    return {
        "run": [
            ["pretrain", "--run", path],
            ["export", path, "--to", out],
            ["detect", glue / "CoLA" / "dev.tsv", "--model", path],
            ["report", path],
        ],
        "exported": [
            ["evaluate", path, "--data", prepared, "--rows", 2, "--length", 16],
            ["score", glue / "CoLA" / "dev.tsv", "--model", path],
            ["finetune", "cola", "--model", path, *tune],
            [*begin, "--init-from", path],
            [*begin, "--init-from", path / "discriminator", "--init-generator", path / "generator"],
        ],
        "data": [
            ["pretrain", "--data", path, "--run", out, *MODEL, "--train.phases", 1, 16, 4],
            ["prepare", "--corpus", glue / "CoLA" / "dev.tsv", "--out", path, "--vocab-size", 128, "--processes", 1],
        ],
        "glue": [["finetune", "cola", "--model", finished, *tune[2:], "--data", path]],
        "corpus": [["prepare", "--corpus", path, *text]],
    }[folder]


@pytest.fixture(scope="module")
def sound(workshop: Path, finished: Path, prepared: Path, glue: Path, commands: Commands) -> dict[str, Path]:
    """One folder of each kind, with nothing wrong."""
    exported, corpus = workshop / "exported", workshop / "corpus"
    commands.done("export", finished, "--to", exported)
    corpus.mkdir()
    (corpus / "train.txt").write_text("\n\n".join(documents(20)))
    return {"run": finished, "exported": exported, "data": prepared, "glue": glue, "corpus": corpus}


@pytest.mark.parametrize(("folder", "name"), PLACES, ids=lambda value: value.replace("/", "."))
def test_planted_in_place_of_a_file(
    folder, name, sound, finished, prepared, glue, commands: Commands, faults: Faults, tmp_path
):
    """With and without a manifest, which would notice before anything is read."""
    mark, path = tmp_path / "mark", tmp_path / "folder"
    kinds = poisons(mark)
    for kind in kinds if faults.is_full else [faults.random.choice(list(kinds))]:
        words = readers(folder, path, finished, prepared, glue, tmp_path / "out")
        for command in words if faults.is_full else [faults.random.choice(words)]:
            for left in (path, tmp_path / "out"):
                shutil.rmtree(left, ignore_errors=True)
            shutil.copytree(sound[folder], path)
            (path / name).write_bytes(kinds[kind])
            if folder == "exported" and not name.endswith(MANIFEST):
                (path / name).with_name(MANIFEST).unlink()
            with faults.inject(f"a pickle planted in a {folder} folder"):
                ended = commands.run(*command)
                assert not mark.exists(), f"{command[0]} ran it"
                assert ended.code in (0, 2), ended.said
                assert "Traceback" not in ended.said, ended.said


@pytest.mark.parametrize("folder", READ)
def test_planted_beside_the_files(
    folder, sound, finished, prepared, glue, commands: Commands, faults: Faults, tmp_path
):
    """Where another program would look for it."""
    mark, path = tmp_path / "mark", tmp_path / "folder"
    shutil.copytree(sound[folder], path)
    content = poisons(mark)["torch"]
    for inside in [path, *(found for found in path.rglob("*") if found.is_dir())]:
        for name in BESIDE:
            (inside / name).write_bytes(content)
    for command in readers(folder, path, finished, prepared, glue, tmp_path / "out"):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        with faults.inject(f"a pickle planted beside the files of a {folder} folder"):
            commands.done(*command)
            assert not mark.exists(), f"{command[0]} ran it"


def hub_folders(mark: Path) -> dict[str, tuple[str, bytes]]:
    """A file that alone makes up a dataset: its name, and what is in it."""
    poison = poisons(mark)
    script = f"import os\nos.mkdir({str(mark)!r})\nclass Builder: pass\n".encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for ending in ("pyd", "pickle", "pkl", "pth", "npy", "txt"):
            member = tarfile.TarInfo(f"0.{ending}")
            content = poison.get({"npy": "numpy", "pth": "torch"}.get(ending, "pickle"), b"")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return {
        "a script": ("folder.py", script),
        "an archive": ("train.tar", archive.getvalue()),
        "a pickle": ("train.pkl", poison["pickle"]),
        "an array": ("train.npy", poison["numpy"]),
        "no text": ("train.txt", poison["pickle"]),
    }


def test_datasets_that_would_run(finished, commands: Commands, faults: Faults, tmp_path):
    """`hf:FOLDER`, which Hugging Face's library reads."""
    mark, path, out = tmp_path / "mark", tmp_path / "folder", tmp_path / "out"
    folders = hub_folders(mark)
    for kind in folders if faults.is_full else ["a script", "an archive"]:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        (path / folders[kind][0]).write_bytes(folders[kind][1])
        with faults.inject("a pickle planted in a dataset"):
            words = "--tokenizer", finished / "tokenizer", "--processes", 1, "--out", out
            ended = commands.run("prepare", "--corpus", f"hf:{path}", *words)
            assert not mark.exists(), kind
            assert ended.code == 2, f"{kind}: {ended.said}"
            assert "Traceback" not in ended.said, f"{kind}: {ended.said}"


def test_a_folder_of_nothing_but_a_pickle(sound, prepared, commands: Commands, faults: Faults, tmp_path):
    """As old models come: it is said why it is not read."""
    path = tmp_path / "folder"
    shutil.copytree(sound["exported"], path)
    (path / "discriminator" / "model.safetensors").unlink()
    (path / "discriminator" / "pytorch_model.bin").write_bytes(poisons(tmp_path / "mark")["torch"])
    for command in (["detect", "--model", path], ["page", "--model", path, "--port", 0]):
        with faults.inject("a model that is a pickle"):
            ended = commands.run(*command)
            assert ended.code == 2
            assert "is a pickle, which can run code" in ended.said
            assert not (tmp_path / "mark").exists()


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "subprocess"}
FORBIDDEN_CALLS = {"torch.load", "np.load", "numpy.load", "eval", "exec", "compile", "os.system", "__import__"}
FORBIDDEN_WORDS = {"allow_pickle", "trust_remote_code", "weights_only"}


def test_no_line_of_the_source_unpickles_or_evaluates():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {name.split(".")[0] for name in names} & FORBIDDEN_MODULES, path
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in FORBIDDEN_CALLS, f"{path}: {ast.unparse(node)}"
                assert not {word.arg for word in node.keywords} & FORBIDDEN_WORDS, f"{path}: {ast.unparse(node)}"
