"""Tiled matrix products in plain loops over tiles, waves and blocks: the reference of the closed forms."""

from __future__ import annotations

import math


def tiles_of(m, n, tile_m, tile_n):
    """Rows and columns of every output tile, those at the edges clipped."""
    tile_m, tile_n = int(tile_m), int(tile_n)
    for row in range(0, m, tile_m):
        for column in range(0, n, tile_n):
            yield min(tile_m, m - row), min(tile_n, n - column)


def waves_of(tiles, cores):
    """Waves that a number of tiles takes."""
    waves = 0
    while tiles > 0:
        waves, tiles = waves + 1, tiles - cores
    return waves


def cut_depth(tiles, k, tile_k, cores):
    """Parts of the summed-over length: doubled tiles as long as cores stay idle and parts keep 16 steps."""
    parts = 1
    while (parts + 1) * tiles <= cores and (parts + 1) * 16 * tile_k <= k:
        parts += 1
    return parts


def tile_work(m, n, k, batch, tile_m, tile_n, device):
    """What a product with one tile shape does: multiply-adds, scratchpad, register and cache traffic, stores, parts.

    The first three are what all cores could have done while the waves of full tiles last, in multiply-adds or bytes.
    """
    tiles = batch * sum(1 for _ in tiles_of(m, n, tile_m, tile_n))
    steps = math.ceil(k / device["gemm_tile_k"])
    parts = cut_depth(tiles, k, device["gemm_tile_k"], device["cores"])
    per_tile = tile_m * tile_n * steps * device["gemm_tile_k"]
    slots = waves_of(tiles * parts, device["cores"]) * device["cores"] / parts  # tiles that would fit
    groups = math.ceil(tile_m / device["register_tile_m"]), math.ceil(tile_n / device["register_tile_n"])
    depth = steps * device["gemm_tile_k"]
    scratchpad = 0
    scratchpad += (tile_m + tile_n) * depth  # written once
    for _ in range(groups[0]):
        for _ in range(groups[1]):  # each group of threads reads its rows and columns
            scratchpad += (tile_m / groups[0] + tile_n / groups[1]) * depth
    registers = 2 * 4 * tile_m * tile_n * depth / device["matrix_instruction_depth"]
    loads = stores = 0
    for rows, columns in tiles_of(m, n, tile_m * device["gemm_cluster"], tile_n):
        loads += batch * (rows + columns) * k
        stores += batch * rows * columns
    return slots * per_tile, slots * scratchpad, slots * registers, loads, stores, parts


def product_time(m, n, k, batch, device, operand, result, rate, hbm_rate):
    """Seconds of one product without launch, by resource, with the tile that is fastest on chip."""
    best = None
    full = int(device["gemm_tile_m"]), int(device["gemm_tile_n"])
    shapes = {(full[0] // a, full[1] // b) for a, b in ((1, 1), (1, 2), (2, 1), (2, 2), (2, 4))}
    shapes |= {(full[1] // b, full[0] // a) for a, b in ((1, 1), (2, 1), (2, 2))}
    for tile in sorted(shapes):
        volume, scratchpad, registers, loads, stores, parts = tile_work(m, n, k, batch, *tile, device)
        times = {
            "arithmetic": 2 * volume / rate,
            "registers": registers / (device["register_bandwidth"] or 1e18),
            "shared_memory": scratchpad * operand / (device["shared_memory_bandwidth"] or 1e18),
            "l2": loads * operand / device["l2_bandwidth"],
        }
        alone = 2 * 4 * tile[0] * tile[1] > device["accumulator_memory_size"]
        end = stores * ((result if alone else 0) + (8 * parts if parts > 1 else 0)) / device["l2_bandwidth"]
        if best is None or max(times.values()) + end < best[0] * (1 - 1e-12):
            hbm = memory_bytes(m, n, k, batch, *full, device["cores"], operand, result, device["l2_size"]) / hbm_rate
            best = max(times.values()) + end, hbm
    assert best is not None
    return max(best)


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
