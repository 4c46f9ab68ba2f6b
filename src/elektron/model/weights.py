"""Weights in a file: safetensors, on disk when the call returns."""

import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, path, {"format": "pt"})
    except SafetensorError as error:
        raise OSError(None, f"cannot write {path}: {error}") from error
    with open(path, "rb") as file:
        os.fsync(file.fileno())
