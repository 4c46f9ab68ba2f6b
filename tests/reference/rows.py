"""Rows of a stream, one token at a time."""

from reference.hashing import fold


def permuted(index: int, n: int, key: int) -> int:
    """Where a keyed permutation of range(n) sends an index."""
    height = 1
    while height * height < n:
        height += 1
    width = 1
    while height * width < n:
        width += 1
    return _walked(index, n, height, width, key)


def _walked(index: int, n: int, height: int, width: int, key: int) -> int:
    keys = [fold(key, i) for i in range(8)]
    while True:
        left, right = divmod(index, width)
        for i in range(0, 8, 2):
            left = (left + fold(keys[i], right)) % height
            right = (right + fold(keys[i + 1], left)) % width
        index = left * width + right
        if index < n:
            return index


def row(tokens: list[int], ends: set[int], number: int, length: int, key: int, cls: int, sep: int):
    """Row `number` of the endless sequence: (tokens, segments). `ends` are the places after a document's last token."""
    text = length - 3
    count = 0
    while count * text < len(tokens):
        count += 1
    epoch, place = divmod(number, count)
    start = permuted(place, count, fold(fold(key, 1), epoch)) * text
    inside = [tokens[(start + i) % len(tokens)] for i in range(text)]
    here = [i for i in range(1, text) if (start + i - 1) % len(tokens) + 1 in ends]
    if here:
        cut = min(here, key=lambda i: (abs(2 * i - text), i))
    else:
        cut = 1 + fold(fold(fold(key, 2), number >> 31), number & 0x7FFFFFFF) % (text - 1)
    first, second = inside[:cut], inside[cut:]
    return [cls, *first, sep, *second, sep], [0] * (len(first) + 2) + [1] * (len(second) + 1)


def permuted_large(index: int, n: int, key: int) -> int:
    """`permuted` for numbers too large to count up to."""
    low, height = 0, n
    while height - low > 1:
        middle = (low + height) // 2
        low, height = (middle, height) if middle * middle < n else (low, middle)
    width = n // height + (n % height > 0)
    return _walked(index, n, height, width, key)
