"""Tiled matrix products in plain loops over tiles, waves and blocks: the reference of the closed forms."""

from __future__ import annotations

import math


def tiles_of(m, n, tile_m, tile_n):
    """Rows and columns of every output tile, those at the edges clipped."""
    for row in range(0, m, tile_m):
        for column in range(0, n, tile_n):
            yield min(tile_m, m - row), min(tile_n, n - column)


def busy_fraction(m, n, k, batch, tile_m, tile_n, tile_k, cores):
    """Useful multiply-adds over those that all cores could do while the waves of full tiles last."""
    tiles, steps, waves = 0, 0, 0
    for _ in range(batch):
        tiles += sum(1 for _ in tiles_of(m, n, tile_m, tile_n))
    for _ in range(0, k, tile_k):
        steps += 1
    while tiles > 0:
        waves, tiles = waves + 1, tiles - cores
    return batch * m * n * k / (waves * cores * tile_m * tile_n * steps * tile_k)


def best_busy_fraction(m, n, k, batch, tile_m, tile_n, tile_k, cores):
    """The same with the better of the tile's two orientations."""
    shape = (m, n, k, batch)
    return max(
        busy_fraction(*shape, tile_m, tile_n, tile_k, cores), busy_fraction(*shape, tile_n, tile_m, tile_k, cores)
    )


def cache_bytes(m, n, k, batch, tile_m, tile_n, cluster, operand_size, result_size):
    """Traffic between cache and cores: every cluster of tiles, one above the other, reads its rows and columns."""
    found = 0
    for rows, columns in tiles_of(m, n, tile_m * cluster, tile_n):
        found += (rows + columns) * k * operand_size + rows * columns * result_size
    return batch * found


def memory_bytes(m, n, k, batch, tile_m, tile_n, cores, operand_size, result_size, cache):
    """Memory traffic if each wave computes a square block, or a strip where the result is narrower.

    A block that the edge cuts off is a part of a wave, which goes on in the next block: it counts by its part.
    """
    once = (m * k + k * n) * operand_size
    if once <= cache:
        return batch * (once + m * n * result_size)
    area = cores * tile_m * tile_n
    height = width = math.sqrt(area)
    if height > m:
        height, width = m, area / m
    elif width > n:
        height, width = area / n, n
    height, width = min(height, m), min(width, n)
    read, top = 0.0, 0.0
    while top < m * (1 - 1e-12):
        rows, left = min(height, m - top), 0.0
        while left < n * (1 - 1e-12):
            columns = min(width, n - left)
            read += k * (rows * (columns / width) + columns * (rows / height))
            left += width
        top += height
    return batch * (read * operand_size + m * n * result_size)


def memory_reads_by_waves(m, n, k, tile_m, tile_n, cores):
    """Operand elements read if whole tiles are handed out in swizzled order, so many at a time as there are cores.

    The order goes down strips that are as wide as a square block; each wave reads what its tiles touch, once.
    """
    strip = max(1, min(round(math.sqrt(cores * tile_m * tile_n) / tile_n), math.ceil(n / tile_n)))
    order = [
        (row, column)
        for first in range(0, math.ceil(n / tile_n), strip)
        for row in range(math.ceil(m / tile_m))
        for column in range(first, min(first + strip, math.ceil(n / tile_n)))
    ]
    read = 0
    for start in range(0, len(order), cores):
        wave = order[start : start + cores]
        for row in {row for row, _ in wave}:
            read += min(tile_m, m - row * tile_m) * k
        for column in {column for _, column in wave}:
            read += min(tile_n, n - column * tile_n) * k
    return read
