"""The device, the precision on it, and how fast it multiplies and copies."""

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

DeviceName = Literal["auto", "cpu", "cuda"]


def choose_device(name: DeviceName) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here; use --device auto or cpu")
    return torch.device(name)


def precision(device: torch.device) -> torch.dtype:
    """The one place that decides: networks compute in bfloat16 on a GPU, in float32 on a CPU. Norms, losses, gradients
    of parameters, and what the optimizer keeps are float32 on both."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def describe(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def matrix_peak(device: torch.device, repeats: int = 10) -> float:
    """FLOP/s of a large matrix product in the precision the device trains in, as measured now."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    return 2 * size**3 / _median_seconds(lambda: torch.mm(a, b), device, repeats)


def copy_peak(device: torch.device, repeats: int = 10) -> float:
    """Bytes a second, read and written, of a copy that no cache holds, as measured now."""
    size, times = (1 << 30, 8) if device.type == "cuda" else (1 << 27, 1)
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        for _ in range(times):  # one alone is so short on a GPU that the waiting would show
            target.copy_(source)

    return 2 * size * times / _median_seconds(copy, device, repeats)


def _median_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        wait(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def on_host(*tensors: Tensor) -> list[Tensor]:
    """Copies in the host's memory, in pages that a GPU may write to itself: to others it is some ten times slower."""
    copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=t.is_cuda).copy_(t, non_blocking=True) for t in tensors]
    wait(tensors[0].device)
    return copies


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
