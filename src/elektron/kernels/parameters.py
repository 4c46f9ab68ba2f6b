"""The gradients of the parameters of layers, once the gradients of what lies between are there.

Those of a thin layer's four matrices are one launch (M tokens, D width, F feed-forward width; `Factors`):

    dWqkv = dqkv^T x      dWout = dattended^T mixed      dWup = dbent^T y      dWdown = dfed^T value

in tiles, each summed over one of S parts of the tokens, because there are fewer tiles than processors; a second launch
adds the parts to what is there, always in the same order.

Those of vectors come as partial sums from kernels that pass by anyway, and are added for all layers at once.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from elektron.kernels.gpu import PROCESSORS, described, gradient, has_room, loads_blocks, tl, triton
from elektron.kernels.layer import LayerWeights
from elektron.kernels.products import add_product, column_sums

_WIDTHS = (32, 64, 128, 256)
_ADDED = 2048
"""Elements that a program adds."""


class Factors(NamedTuple):
    """What the gradients of a layer's matrices are products of."""

    qkv: Tensor  # [M, 3D] its gradient
    x: Tensor  # [M, D]
    attended: Tensor  # [M, D] the gradient of the attention's product
    mixed: Tensor  # [M, D]
    bent: Tensor  # [M, F] the gradient of the feed-forward's first product
    y: Tensor  # [M, D]
    fed: Tensor  # [M, D] the gradient of its second
    value: Tensor  # [M, F]


def are_thin(width: int, feedforward_width: int) -> bool:
    """Whether the matrices of a layer are cut into whole tiles, few enough for `add_matrices`."""
    return width in _WIDTHS and feedforward_width % width == 0


class Aside:
    """Gradients of matrices, which nothing in the backward pass waits for, on a stream of their own."""

    _streams: ClassVar[dict[torch.cuda.Stream, torch.cuda.Stream]] = {}

    def __init__(self, device: torch.device) -> None:
        self._stream, self._held = None, None
        if device.type == "cuda":
            here = torch.cuda.current_stream(device)
            if here not in self._streams:
                self._streams[here] = torch.cuda.Stream(device)
            self._stream = self._streams[here]

    def add_matrices(self, factors: Factors, w: LayerWeights) -> None:
        """No factor may change before the next call, or `join`."""
        if self._stream is None:
            add_matrices(factors, w)
            return
        self.join()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            add_matrices(factors, w)
        self._held = factors  # or their memory would go to whoever asks next

    def join(self) -> None:
        if self._stream is not None and self._held is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
            self._held = None


def add_matrices(factors: Factors, w: LayerWeights, biases: Tensor | None = None) -> None:
    """`biases` [S, 5D + F], if wanted, get the gradients of the matrices' biases, in parts."""
    wide, width = w.up.shape
    if not (are_thin(width, wide) and loads_blocks(factors.x)):
        _add_by_library(factors, w, biases)
        return
    rows, columns, at_once = _tile(width)
    tiles, splits = _tiles(width, wide), parts_of(width, wide)
    parts = torch.empty(splits, tiles * rows * columns, device=w.up.device)
    sizes = {"WIDTH": width, "WIDE": wide, "ROWS": rows, "COLUMNS": columns}
    in_flight = at_once * (rows + columns) * factors.x.element_size() >> 10  # kilobytes of a stage
    _parts_kernel[(tiles, splits)](
        *(described(factor, [at_once, columns if n % 2 else rows]) for n, factor in enumerate(factors)),
        *(parts, biases, triton.cdiv(triton.cdiv(len(factors.x), at_once), splits)),
        **sizes,
        TOKENS=at_once,
        num_warps=8 if width > 128 else 4,
        num_stages=4 if has_room(parts, 4 * in_flight) else 2,
    )
    few = min(rows, _ADDED // columns)
    _add_kernel[(tiles, rows // few)](
        *(gradient(matrix) for matrix in w.matrices), parts, **sizes, SPLITS=splits, FEW=few
    )


def _add_by_library(factors: Factors, w: LayerWeights, biases: Tensor | None) -> None:
    for matrix, left, right in zip(w.matrices, factors[::2], factors[1::2], strict=True):
        add_product(gradient(matrix), left, right)
    if biases is not None:
        biases.zero_()[0] = torch.cat([column_sums(left) for left in factors[::2]])


def parts_of(width: int, wide: int) -> int:
    """S of `add_matrices`."""
    return max(1, PROCESSORS // _tiles(width, wide))


def _tile(width: int) -> tuple[int, int, int]:
    """Rows and columns of a tile, and tokens at a time."""
    return min(128, width), width, 64 if width > 64 else 128


def _tiles(width: int, wide: int) -> int:
    rows, columns, _ = _tile(width)
    return (4 * width + wide) // rows + width // rows * (wide // columns)


def add_vectors(layers: list[LayerWeights], **found: Tensor) -> None:
    """Gradients [L, N], by the vectors' names."""
    places = [gradient(getattr(w, name)) for w in layers for name in found]
    torch._foreach_add_(places, [tensor[n] for n in range(len(layers)) for tensor in found.values()])  # pyright: ignore[reportPrivateImportUsage]


@triton.jit
def _place(tile, WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The number of a tile's matrix, and the first row and column of the tile there. All but the last matrix are as
    wide as a tile, and the last as high as WIDTH."""
    UPPER: tl.constexpr = (4 * WIDTH + WIDE) // ROWS
    ACROSS: tl.constexpr = WIDE // COLUMNS
    row, column = tile * ROWS, 0
    if row < 3 * WIDTH:
        matrix = 0
    elif row < 4 * WIDTH:
        matrix = 1
        row -= 3 * WIDTH
    elif row < 4 * WIDTH + WIDE:
        matrix = 2
        row -= 4 * WIDTH
    else:
        matrix = 3
        row = (tile - UPPER) // ACROSS * ROWS
        column = (tile - UPPER) % ACROSS * COLUMNS
    return matrix, row, column


@triton.jit
def _parts_kernel(
    qkv, x, attended, mixed, bent, y, fed, value, parts, biases, blocks,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """A tile over so many blocks of tokens; those beyond the last are read as zeros. The tiles of a part run side by
    side, and read the same tokens."""
    matrix, row, column = _place(tl.program_id(0), WIDTH, WIDE, ROWS, COLUMNS)
    if matrix == 0:
        left, right = qkv, x
    elif matrix == 1:
        left, right = attended, mixed
    elif matrix == 2:
        left, right = bent, y
    else:
        left, right = fed, value
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    along = tl.zeros((ROWS, 16), tl.float32)
    first = tl.program_id(1) * blocks
    for block in range(blocks):
        a = left.load([(first + block) * TOKENS, row])
        b = right.load([(first + block) * TOKENS, column])
        total = tl.dot(tl.trans(a), b, total, input_precision="ieee")
        if biases is not None:  # sums over tokens are products with ones, and the least that is multiplied is 16 wide
            along = tl.dot(tl.trans(a), tl.full((TOKENS, 16), 1.0, a.dtype), along, input_precision="ieee")
    tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(parts + tile * ROWS * COLUMNS + at, total)
    if biases is not None:
        places = biases + tl.program_id(1) * (5 * WIDTH + WIDE) + tl.arange(0, ROWS)
        places += tl.where(matrix == 3, 4 * WIDTH + WIDE + row, tl.program_id(0) * ROWS)
        tl.store(places, tl.max(along, 1), column == 0)


@triton.jit
def _add_kernel(
    qkv, out, up, down, parts,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
    FEW: tl.constexpr,
):  # fmt: skip
    """FEW rows of a tile, from all parts."""
    matrix, row, column = _place(tl.program_id(0), WIDTH, WIDE, ROWS, COLUMNS)
    if matrix == 0:
        place, stride = qkv, WIDTH
    elif matrix == 1:
        place, stride = out, WIDTH
    elif matrix == 2:
        place, stride = up, WIDTH
    else:
        place, stride = down, WIDE
    rows, columns = tl.program_id(1) * FEW + tl.arange(0, FEW)[:, None], tl.arange(0, COLUMNS)[None, :]
    at = parts + tl.program_id(0) * ROWS * COLUMNS + rows * COLUMNS + columns
    total = tl.load(at)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(at + split * tl.num_programs(0) * ROWS * COLUMNS)
    place += (row + rows) * stride + column + columns
    tl.store(place, tl.load(place) + total)
