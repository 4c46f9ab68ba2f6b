"""Triton, where there is one. A kernel file has its Triton kernels beside the plain PyTorch they must equal, and is
imported on machines without Triton too: there, a kernel is a plain function that nobody calls.

A kernel runs where `runs_on` says so, and where its file says that the shapes fit; elsewhere its plain twin does.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

_HERE = importlib.util.find_spec("triton") is not None

if TYPE_CHECKING:

    class _Names(type):
        def __getattr__(cls, name: str) -> Any: ...  # its language is not Python's: types say nothing about it

    class triton(metaclass=_Names): ...  # noqa: N801

    class tl(metaclass=_Names):  # noqa: N801
        constexpr: TypeAlias = Any
elif _HERE:
    import triton
    import triton.language as tl
else:

    class _Absent:
        """What a kernel's definition asks of Triton."""

        constexpr = Any

        @staticmethod
        def jit(kernel: Any) -> Any:
            return kernel

    triton = tl = _Absent()

__all__ = ["at_home", "beside", "gradient", "interpreted", "rejoin", "runs_on", "tl", "triton"]


def runs_on(tensor: Tensor) -> bool:
    """Whether Triton kernels can take the tensor."""
    return tensor.is_cuda and _HERE


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on a CPU: in the tests."""
    return _HERE and triton.knobs.runtime.interpret


def gradient(parameter: Tensor) -> Tensor:
    """Where a parameter's gradient is added up, in float32 whatever the parameter's own type. Kernels add to it in
    place, which spares a copy and a launch for each of the hundreds of parameters."""
    if parameter.grad is None:
        parameter.grad_dtype = torch.float32
        parameter.grad = torch.zeros_like(parameter, dtype=torch.float32)
    return parameter.grad


_second: dict[torch.device, torch.cuda.Stream] = {}
_home: dict[torch.device, torch.cuda.Stream] = {}


@contextmanager
def beside(x: Tensor) -> Iterator[None]:
    """On a GPU, do what is inside on a second stream, and wait for it. Autograd goes back on the stream that an
    operation came on: what is inside and what follows have their backward passes side by side, where small kernels fill
    the gaps that large ones leave. `rejoin` waits for both."""
    if not x.is_cuda:
        yield
        return
    home = _home[x.device] = torch.cuda.current_stream(x.device)
    second = _second.setdefault(x.device, torch.cuda.Stream(x.device))
    second.wait_stream(home)
    with torch.cuda.stream(second):
        yield
    home.wait_stream(second)


@contextmanager
def at_home(*given: Tensor, is_awaited: bool = False) -> Iterator[None]:
    """From the second stream back to the first, for kernels that add to the gradients of parameters which both use.
    `given` is what these kernels read. The second stream goes on at once, unless the result `is_awaited`."""
    device = given[0].device
    second = _second.get(device)
    if second is None or torch.cuda.current_stream(device) != second:
        yield
        return
    home = _home[device]
    home.wait_stream(second)
    for tensor in given:
        tensor.record_stream(home)
    with torch.cuda.stream(home):
        yield
    if is_awaited:
        second.wait_stream(home)


def rejoin(device: torch.device) -> None:
    """Go on when the second stream is done."""
    if device in _second:
        torch.cuda.current_stream(device).wait_stream(_second[device])
