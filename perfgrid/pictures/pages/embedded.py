"""The grid of a report as text within its page: 16 bits for each number, differences, gzip, base64.

A number is stored by its logarithm, so that its relative error is at most `ERROR`; where that is not possible (negative
numbers, a wider range) in single precision. Codes of 16 bits: 0 is NaN, 1 is zero.
"""

from __future__ import annotations

import base64
import gzip
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from .grid import Grid

ERROR = 1e-4  # relative, of an embedded number
FIRST, LAST = 2, 65535  # codes of the least and the largest number
MOST_POINTS = 1_600_000  # of an embedded grid
MOST_BYTES = 2_000_000  # of all embedded numbers as text


def part(grid: Grid, most: int = MOST_POINTS) -> tuple[Grid, dict[str, str]]:
    """A part of a grid that is small enough to be embedded, and the labels at which other axes are held."""
    view, held = grid.first_view(), {}
    sizes: dict[str, int] = {a: int(grid.result.sizes[a]) for a in grid.axes}
    kept = (view["x"], view["series"])
    while prod(sizes.values()) > most:
        axis = max(sizes, key=lambda a: (a not in kept and sizes[a] > 1, sizes[a]))
        row = view["rows"][axis]
        held[axis], sizes[axis] = (0 if row == "best" else int(row)), 1
    if not held:
        return grid, {}
    labels = {axis: str(grid.labels(axis)[row]) for axis, row in held.items()}
    return replace(
        grid, result=grid.result.isel({a: [row] for a, row in held.items()}), _kept={}, _satisfied=[], _reasons={}
    ), labels


def embedded(grid: Grid) -> tuple[dict[str, Any], dict[str, str]]:
    """How the numbers and reasons of a grid are stored, and the texts by name; the objective first, as many as fit."""
    objective, _ = grid.objective()
    about: dict[str, Any] = {"numbers": {}, "reasons": [], "left_out": []}
    texts: dict[str, str] = {}
    reasons: dict[tuple[str, ...], int] = {}
    room = MOST_BYTES
    for name in sorted(grid.quantities, key=lambda n: n != objective):
        why = grid.reasons(name)
        illegal = np.array([False, *grid.unlawful()])[why.values]
        masked = grid.read(name)
        values, dims = masked.values.astype(np.float64), tuple(map(str, masked.dims))
        wide = {d: n for d, n in zip(masked.dims, masked.shape, strict=True)}
        if set(why.dims) <= set(masked.dims):  # else a design without meaning is known by its reason
            here = why.copy(data=illegal).set_dims(wide).transpose(*masked.dims).values
            values = np.where(here, np.nan, values)
        how, packed = packed_numbers(values)
        text = _text(packed)
        if len(text) > room:
            about["left_out"].append(name)
            continue
        room -= len(text)
        key = (*map(str, why.dims), why.values.tobytes().hex())
        if key not in reasons:
            number = reasons[key] = len(reasons)
            texts[f"reasons-{number}"] = text = _text(why.values.tobytes())
            about["reasons"].append({"axes": list(map(str, why.dims))})
            room -= len(text)
        texts[f"numbers-{name}"] = _text(packed)
        about["numbers"][name] = {"axes": list(dims), "reasons": reasons[key], **how}
    return about, texts


def packed_numbers(values: np.ndarray) -> tuple[dict[str, Any], bytes]:
    """Numbers as bytes, and how to read them: a plane of low bytes and one of high ones of differences of codes."""
    flat = values.ravel()
    known = np.isfinite(flat)
    positive = known & (flat > 0)
    ends = np.log([flat[positive].min(), flat[positive].max()]) if positive.any() else np.zeros(2)
    step = float(ends[1] - ends[0]) / (LAST - FIRST)
    if (known & (flat < 0)).any() or np.isinf(flat).any() or step / 2 > 0.9 * ERROR:
        single = flat.astype("<f4").view(np.uint8).reshape(-1, 4)
        return {"stored": "float32", "size": len(flat)}, single.T.tobytes()
    codes = np.zeros(len(flat), np.uint16)
    codes[known & (flat == 0)] = 1
    codes[positive] = FIRST + np.round((np.log(flat[positive]) - ends[0]) / (step or 1.0)).astype(np.uint16)
    differences = np.diff(codes, prepend=np.uint16(0)).astype("<u2")  # modulo 2^16
    planes = differences.view(np.uint8).reshape(-1, 2)
    return {"stored": "log16", "size": len(flat), "low": float(ends[0]), "step": step}, planes.T.tobytes()


def _text(packed: bytes) -> str:
    return base64.b64encode(gzip.compress(packed, 9, mtime=0)).decode()
