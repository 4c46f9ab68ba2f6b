"""The hash of elektron.kernels.counters on Python's whole numbers."""

WORD = 0xFFFFFFFF


def mix(x: int) -> int:
    x = (x + 0x9E3779B9) & WORD
    x ^= x >> 16
    x = (x * 0x7FEB352D) & WORD
    x ^= x >> 15
    x = (x * 0x846CA68B) & WORD
    return x ^ (x >> 16)


def fold(key: int, counter: int) -> int:
    return mix(key ^ mix(counter & WORD))


def seed_key(seed: int) -> int:
    return fold(fold(0, seed), seed >> 32)


def row_key(seed: int, step: int, row: int) -> int:
    return fold(fold(seed_key(seed), step), row)


def kept(key: int, line: int, place: int, count: int, rate: float) -> bool:
    """Whether dropout leaves the element alone that has this place in a line of `count`: its 16 bits, as a signed
    number, are not among the lowest."""
    words = (count + 1) // 2
    half = (fold(fold(key, line), place % words) >> 16 * (place // words)) & 0xFFFF
    return (half ^ 0x8000) >= int(rate * 2**16)


def uniform(bits: int) -> float:
    return ((bits >> 9) + 0.5) / 2**23
