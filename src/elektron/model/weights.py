"""Weights: in which precision, and in a file."""

import hashlib
import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn


def is_lowered(name: str) -> bool:
    """Whether a parameter may stand in a lower precision: what enters products does, norms stay in float32."""
    return "norm" not in name


def lower(network: nn.Module, dtype: torch.dtype) -> None:
    """Have the network compute in `dtype`."""
    for name, parameter in network.named_parameters():
        if is_lowered(name):
            parameter.data = parameter.data.to(dtype)


def fingerprint(network: nn.Module) -> str:
    """Names the parameters' values."""
    total = hashlib.sha256()
    for name, parameter in network.named_parameters():
        total.update(name.encode())
        total.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return total.hexdigest()


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """safetensors, on disk when the call returns."""
    try:
        save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, path, {"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else None, f"cannot write {path}: {error}") from error
    with open(path, "rb") as file:
        os.fsync(file.fileno())
