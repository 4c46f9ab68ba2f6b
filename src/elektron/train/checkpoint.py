"""Checkpoints: safetensors and JSON under a manifest of checksums, written aside and renamed, never half there.

RUN/checkpoints/step-00010000/  model.safetensors  optimizer.safetensors  state.json  manifest.json
"""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from elektron.data.files import fields_of, new_folder, read_json, remove_folder, sha256, write_json
from elektron.model.weights import write_tensors

FOLDER = "checkpoints"
VERSION = 2
_FILES = _MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_MANIFEST = "manifest.json"


class Checkpoint(NamedTuple):
    """What a run goes on from."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]
    """JSON: whatever else the loop wants back."""


def save(run: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint, then remove all but the newest `keep`. If writing fails, what was there stays."""
    folder = folder_of(run, checkpoint.step)
    for left_behind in (run / FOLDER).glob(".*"):
        shutil.rmtree(left_behind, ignore_errors=True)
    try:
        with new_folder(folder) as unfinished:
            _write(unfinished, checkpoint)
    except OSError as error:
        left = all_steps(run)
        still = f"the newest whole checkpoint is step {left[-1]}" if left else "there is no checkpoint yet"
        raise OSError(error.errno, f"cannot write {folder}: {error.strerror or error}; {still}") from error
    for step in all_steps(run)[: -max(1, keep)]:
        remove_folder(folder_of(run, step))
    return folder


class Writer:
    """Writes checkpoints while training goes on, one at a time."""

    def __init__(self, run: Path, keep: int) -> None:
        self._run, self._keep = run, keep
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[Path] | None = None

    def write(self, checkpoint: Checkpoint) -> None:
        """Begin to, once the one before is there. Nobody may change its tensors any more."""
        self.wait()
        self._last = self._thread.submit(save, self._run, checkpoint, self._keep)

    @property
    def is_idle(self) -> bool:
        return self._last is None or self._last.done()

    def wait(self) -> None:
        """Until all is written; what went wrong with it is raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown()
        self.wait()


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    for name, tensors in ((_MODEL, checkpoint.model), (_OPTIMIZER, checkpoint.optimizer)):
        write_tensors(folder / name, tensors)
    write_json(folder / _STATE, checkpoint.state)
    sums = {name: _sums(folder / name) for name in _FILES}
    write_json(folder / _MANIFEST, {"version": VERSION, "step": checkpoint.step, "files": sums})


def _sums(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def folder_of(run: Path, step: int) -> Path:
    return run / FOLDER / _name(step)


def all_steps(run: Path) -> list[int]:
    """The steps that have a checkpoint, ascending."""
    names = (folder.name.removeprefix("step-") for folder in (run / FOLDER).glob("step-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def load_newest(run: Path) -> Checkpoint | None:
    """The newest checkpoint, every byte of it checked; None if the run has none."""
    steps = all_steps(run)
    if not steps:
        return None
    folder = folder_of(run, steps[-1])
    try:
        return load(folder)
    except ValueError as error:
        older = f"step {steps[-2]}, the one before it" if len(steps) > 1 else "the beginning"
        raise ValueError(f"{error}; remove {folder} to go on from {older}") from error


def load(folder: Path) -> Checkpoint:
    """The checkpoint in a folder, every byte of it checked."""
    path = folder / _MANIFEST
    manifest = fields_of(read_json(path), ("version", "step", "files"), path)
    if manifest["version"] != VERSION or folder.name != _name(manifest["step"]):
        raise ValueError(f"{path}: damaged, or of another version than {VERSION}, which this Elektron reads")
    for name, expected in fields_of(manifest["files"], _FILES, path).items():
        if not (folder / name).exists():
            raise ValueError(f"{folder / name} is missing")
        if _sums(folder / name) != expected:
            raise ValueError(f"{folder / name}: damaged (its checksum is not the manifest's)")
    model, optimizer = load_file(folder / _MODEL), load_file(folder / _OPTIMIZER)
    return Checkpoint(manifest["step"], model, optimizer, read_json(folder / _STATE))


@torch.no_grad()
def restore(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy tensors into the model's parameters; every name and shape must fit."""
    parameters = dict(model.named_parameters())
    if set(parameters) != set(tensors):
        raise ValueError(
            f"the checkpoint is of another model: it differs in {sorted(set(parameters) ^ set(tensors))[:4]}"
        )
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            shapes = f"{list(tensors[name].shape)} there, {list(parameter.shape)} here"
            raise ValueError(f"the checkpoint does not fit the config: {name} is {shapes}")
        parameter.copy_(tensors[name])
