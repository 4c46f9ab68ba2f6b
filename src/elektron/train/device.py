"""The device, the precision on it, and how fast it multiplies."""

import ctypes
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

DeviceName = Literal["auto", "cpu", "cuda"]


def choose_device(name: DeviceName) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here; use --device auto or cpu")
    return torch.device(name)


def precision(device: torch.device) -> AbstractContextManager[object]:
    """The one place that decides: matrix products in bfloat16 on a GPU, everything in float32 on a CPU. Parameters and
    optimizer state are float32 on both."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def describe(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def matrix_peak(device: torch.device, repeats: int = 10) -> float:
    """FLOP/s of a large matrix product in the precision the device trains in, as measured now."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a, b)
        wait(device)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds)


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def keep_freed_memory() -> None:
    """Have the C library keep what is freed. Every step of training takes and frees the same hundreds of megabytes;
    glibc would give them back to the system each time, and pay for every page when it takes them again."""
    trim_threshold, map_threshold = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
    try:
        library = ctypes.CDLL("libc.so.6")
    except OSError:
        return  # another C library, with ways of its own
    library.mallopt(trim_threshold, (1 << 31) - 1)
    any(library.mallopt(map_threshold, size) for size in (1 << 30, 1 << 25))  # older ones allow no more than 32 MiB
