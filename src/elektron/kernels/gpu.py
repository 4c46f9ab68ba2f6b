"""Triton, where there is one. A kernel file has its Triton kernels beside the plain PyTorch they must equal, and is
imported on machines without Triton too: there, a kernel is a plain function that nobody calls.

A kernel runs where `runs_on` says so, and where its file says that the shapes fit; elsewhere its plain twin does.
"""

import importlib.util
from typing import TYPE_CHECKING, Any, TypeAlias

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
        def jit(kernel: Any) -> Any:  # noqa: ANN401
            return kernel

    triton = tl = _Absent()

__all__ = ["interpreted", "runs_on", "tl", "triton"]


def runs_on(tensor: Tensor) -> bool:
    """Whether Triton kernels can take the tensor."""
    return tensor.is_cuda and _HERE


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on a CPU: in the tests."""
    return _HERE and triton.knobs.runtime.interpret
