"""Triton, where there is one. A kernel file has its Triton kernels beside the plain PyTorch they must equal, and is
imported on machines without Triton too: there, a kernel is a plain function that nobody calls.

A kernel runs where `runs_on` says so, and where its file says that the shapes fit; elsewhere its plain twin does.

Most kernels are short for the GPU, and none fills it to the end: streams let some run side by side (`beside`,
`at_home`, `rejoin`).
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

        @staticmethod
        def constexpr(value: Any) -> Any:
            return value

        @staticmethod
        def jit(kernel: Any) -> Any:
            return kernel

    triton = tl = _Absent()

__all__ = ["LOG2E", "PROCESSORS", "at_home", "beside", "described", "exp2", "gradient", "has_room", "interpreted"]
__all__ += ["inverse", "loads_blocks", "rejoin", "runs_on", "tl", "triton", "use_kernels"]


LOG2E = tl.constexpr(1.4426950408889634)  # pyright: ignore[reportCallIssue]
"""exp(x) is exp2(x LOG2E), and exp2 is the hardware's own."""
PROCESSORS = 132
"""Multiprocessors of an H100 or H200. Fixed, because how sums are cut into parts decides their last bits."""
_OLDEST = (8, 0)
"""Compute capability of the first GPUs that multiply bfloat16."""
_FIRST_TO_LOAD_BLOCKS = (9, 0)
_switch = {"on": True}


def use_kernels(are_wanted: bool) -> None:
    """Whether there are to be kernels at all."""
    _switch["on"] = are_wanted


def runs_on(tensor: Tensor) -> bool:
    """Whether Triton kernels can take the tensor."""
    return tensor.is_cuda and _HERE and _switch["on"] and torch.cuda.get_device_capability(tensor.device) >= _OLDEST


def has_room(tensor: Tensor, kilobytes: int) -> bool:
    """Whether a program may have so much shared memory: 227 on an H100 or H200, 163 on an A100, 99 on an RTX 4090."""
    if not tensor.is_cuda:
        return True
    return torch.cuda.get_device_properties(tensor.device).shared_memory_per_block_optin >= kilobytes << 10


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on a CPU: in the tests."""
    return _HERE and triton.knobs.runtime.interpret


_IS_COMPILED = tl.constexpr(not interpreted())  # pyright: ignore[reportCallIssue]


@triton.jit
def exp2(x):
    """2^x by the hardware alone: tl.exp2 takes three more instructions to be right where the result is below 1e-38."""
    if _IS_COMPILED:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        return tl.exp2(x)


@triton.jit
def inverse(x):
    """1 / x in the same manner."""
    if _IS_COMPILED:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        return 1.0 / x


def loads_blocks(tensor: Tensor) -> bool:
    """Whether the hardware loads blocks of `described` matrices by itself; older GPUs would load element by element."""
    return not tensor.is_cuda or torch.cuda.get_device_capability(tensor.device) >= _FIRST_TO_LOAD_BLOCKS


def described(matrix: Tensor, block: list[int]) -> Any:
    """A matrix whose blocks a kernel loads by their place alone, which takes one thread and few registers."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(matrix, block)


def gradient(parameter: Tensor) -> Tensor:
    """Where a parameter's gradient is added up, in float32 whatever the parameter's own type. Kernels add to it in
    place, which spares a copy and a launch for each of the hundreds of parameters."""
    assert parameter.is_leaf, "a parameter's gradient has its place with the parameter itself"
    if not parameter.requires_grad:
        return torch.zeros_like(parameter, dtype=torch.float32)  # somewhere to add to, that nobody reads
    if parameter.grad is None:
        parameter.grad_dtype = torch.float32
        parameter.grad = torch.zeros_like(parameter, dtype=torch.float32)
    return parameter.grad


_second: dict[torch.device, torch.cuda.Stream] = {}
_home: dict[torch.device, torch.cuda.Stream] = {}


@contextmanager
def beside(*given: Tensor) -> Iterator[None]:
    """On a GPU, do what is inside on a second stream, and wait for it. Autograd goes back on the stream that an
    operation came on: what is inside and what follows have their backward passes side by side, where small kernels fill
    the gaps that large ones leave. `rejoin` waits for both. `given` is what is read inside. Where there will be no
    backward pass, there is nothing to gain, and no second stream."""
    device = given[0].device
    if device.type != "cuda" or not torch.is_grad_enabled():
        yield
        return
    if device not in _second:
        _second[device] = torch.cuda.Stream(device)
    home, second = torch.cuda.current_stream(device), _second[device]
    _home[device] = home
    second.wait_stream(home)
    for tensor in given:
        tensor.record_stream(second)
    with torch.cuda.stream(second):
        yield
    home.wait_stream(second)


@contextmanager
def at_home(*given: Tensor, is_awaited: bool = False) -> Iterator[None]:
    """From the second stream back to the first, for kernels that add to the gradients of parameters which both use.
    `given` is what these kernels read. The second stream goes on at once, unless the result `is_awaited`."""
    device = given[0].device
    second = _second.get(device)
    home = _home.get(device)
    if second is None or home is None or torch.cuda.current_stream(device) != second:
        yield
        return
    home.wait_stream(second)
    for tensor in given:
        tensor.record_stream(home)
    with torch.cuda.stream(home):
        yield
    if is_awaited:
        second.wait_stream(home)


def rejoin(device: torch.device) -> None:
    """Go on when the second stream is done, if it was used: no graph may wait for a stream that has no part in it."""
    if _home.pop(device, None) is not None:
        torch.cuda.current_stream(device).wait_stream(_second[device])
