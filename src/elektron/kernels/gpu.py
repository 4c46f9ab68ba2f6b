"""Triton, where there is one. A kernel file has its Triton kernels beside the plain PyTorch they must equal, and is
imported on machines without Triton too: there, a kernel is a plain function that nobody calls.

A kernel runs where `runs_on` says so, and where its file says that the shapes fit; elsewhere its plain twin does.
"""

import importlib.util
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

__all__ = ["gradient", "interpreted", "runs_on", "tl", "triton"]


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
