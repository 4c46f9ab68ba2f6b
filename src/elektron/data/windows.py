"""Texts that are longer than a row, read through windows that overlap."""

import numpy as np


def windows(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Where windows of `room` on `length` tokens start and stop: none is skipped, the last window ends with them."""
    stride = min(stride, room)
    count = 1 + max(0, -(-(length - room) // stride))
    return [(start, min(start + room, length)) for start in range(0, count * stride, stride)]


def owners(parts: list[tuple[int, int]]) -> np.ndarray:
    """[C] The first of the windows in which a token has the most context: the smaller of what is left and right of it,
    and a hundredth of the window's length (Devlin et al., arXiv:1810.04805, their code), here times a hundred."""
    most, found = np.zeros((2, parts[-1][1]), dtype=np.int64)
    for n, (start, stop) in enumerate(parts):
        left = np.arange(stop - start)
        context = 100 * np.minimum(left, left[::-1]) + stop - start
        is_more = context > most[start:stop]
        most[start:stop][is_more] = context[is_more]
        found[start:stop][is_more] = n
    return found
