"""Units of a row and the positions they give, token by token."""

import numpy as np

from reference.hashing import fold, uniform


def random_begins(candidates: list[bool], mean: float, longest: int, key: int) -> list[int]:
    """The places of candidates where a unit of random length begins."""
    begins, size = [], 0
    for place, is_candidate in enumerate(candidates):
        if not is_candidate:
            size = 0
        elif size in (0, longest) or uniform(fold(key, place)) < np.float32(1 / mean):
            begins.append(place)
            size = 1
        else:
            size += 1
    return begins


def units(candidates: list[bool], begins: list[bool]) -> list[list[int]]:
    found: list[list[int]] = []
    for place, is_candidate in enumerate(candidates):
        if not is_candidate:
            continue
        if begins[place] or not found or found[-1][-1] != place - 1:
            found.append([])
        found[-1].append(place)
    return found


def stretches(candidates: list[bool], begins: list[bool], count: int, key: int) -> list[int]:
    """Whole units by the hashes of their first places, then what is no candidate, each by its own."""
    others = [[place] for place, is_candidate in enumerate(candidates) if not is_candidate]
    positions: list[int] = []
    for group in (units(candidates, begins), others):
        for unit in sorted(group, key=lambda unit: (fold(key, unit[0]), unit[0])):
            positions += unit[: count - len(positions)]
    return sorted(positions)
