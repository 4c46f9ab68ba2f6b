"""Checkpoints: safetensors and JSON under a manifest of checksums, written aside and renamed, never half there.

RUN/checkpoints/step-00010000/  model.safetensors  optimizer.safetensors  state.json  manifest.json
"""

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from elektron.data.files import fields_of, read_json, sha256, sync_folder, write_json

FOLDER = "checkpoints"
VERSION = 1
_UNFINISHED, _DISCARDED = ".unfinished-", ".discarded-"
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
    folder = run / FOLDER / _name(checkpoint.step)
    unfinished = folder.with_name(_UNFINISHED + folder.name)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        _write(unfinished, checkpoint)
        if folder.exists():  # written before, by a run that was cut back to an older step
            _remove(folder)
        os.replace(unfinished, folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        left = all_steps(run)
        still = f"the newest whole checkpoint is step {left[-1]}" if left else "there is no checkpoint yet"
        raise OSError(error.errno, f"cannot write {folder}: {error.strerror or error}; {still}") from error
    sync_folder(folder.parent)
    for step in all_steps(run)[: -max(1, keep)]:
        _remove(run / FOLDER / _name(step))
    return folder


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    for name, tensors in ((_MODEL, checkpoint.model), (_OPTIMIZER, checkpoint.optimizer)):
        _write_tensors(folder / name, tensors)
    write_json(folder / _STATE, checkpoint.state)
    sums = {name: _sums(folder / name) for name in _FILES}
    write_json(folder / _MANIFEST, {"version": VERSION, "step": checkpoint.step, "files": sums})


def _sums(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _remove(folder: Path) -> None:
    """Rename first: a checkpoint that is half removed must not look like one."""
    discarded = folder.with_name(_DISCARDED + folder.name)
    shutil.rmtree(discarded, ignore_errors=True)
    os.replace(folder, discarded)
    shutil.rmtree(discarded)


def all_steps(run: Path) -> list[int]:
    """The steps that have a checkpoint, ascending."""
    return sorted(int(folder.name.removeprefix("step-")) for folder in (run / FOLDER).glob("step-*"))


def load_newest(run: Path) -> Checkpoint | None:
    """The newest checkpoint, every byte of it checked; None if the run has none."""
    steps = all_steps(run)
    if not steps:
        return None
    folder = run / FOLDER / _name(steps[-1])
    try:
        return _load(folder)
    except ValueError as error:
        older = f"step {steps[-2]}, the one before it" if len(steps) > 1 else "the beginning"
        raise ValueError(f"{error}; remove {folder} to go on from {older}") from error


def _load(folder: Path) -> Checkpoint:
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
