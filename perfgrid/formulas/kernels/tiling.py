"""How a matrix product is cut into tiles, waves of tiles and parts of its depth, and what every memory moves."""

from perfgrid.engine import xp

ROUNDING = 1e-6  # of single precision, generously
INSTRUCTION_ROWS = 16.0  # rows of the smallest matrix instruction (mma.m16n8k16)


def steps_of(extent, step):
    """Whole steps that cover an extent; what misses a whole number by rounding is whole (batches of a table)."""
    return xp.ceil(extent / step * (1 - ROUNDING))


def whole(extent, step):
    """An extent padded to whole steps."""
    return steps_of(extent, step) * step


def padded_volume(m, n, k, batch, tile_m, tile_n, tile_k):
    """Multiply-adds in whole tiles (tile quantisation): M, N and K are rounded up to whole tiles.

    Where there are fewer rows than in a tile, M is rounded up to the 16 rows of a matrix instruction.
    """
    rows = xp.minimum(tile_m, whole(m, INSTRUCTION_ROWS))
    return batch * (whole(m, rows) * whole(n, tile_n)) * whole(k, tile_k)


def tiles_and_parts(m, n, k, batch, tile_m, tile_n, tile_k, cores):
    """Tiles of the result, and parts into which the depth is cut where they leave cores idle (split-K).

    Each part has 16 steps of the tile's depth or more: parts = max(1, min(floor(cores / tiles), floor(K / 16·tile_k))).
    """
    tiles = batch * steps_of(m, tile_m) * steps_of(n, tile_n)
    spare, enough = xp.floor(cores / tiles), xp.floor(k / (16 * tile_k))
    return tiles, xp.maximum(xp.minimum(spare, enough), 1.0)


def wave_utilisation(items, cores):
    """Part of the cores that work if equal items are handed out in waves, the last of them partly filled."""
    waves = items / cores
    return waves / xp.ceil(waves)


def operand_loads(row_bytes, column_bytes, depth, block_rows, block_columns):
    """Bytes read if each block of the result reads its own rows and columns at every step of the depth.

    There may be fractions of blocks.
    """
    return depth * (row_bytes * block_columns + column_bytes * block_rows)


def wave_blocks(m, n, tile_m, tile_n, cores):
    """Block rows and columns of the result if all cores compute one nearly square block at a time (swizzled order)."""
    area = cores * tile_m * tile_n
    side = xp.sqrt(area)
    rows, columns = xp.maximum(side, area / n), xp.maximum(side, area / m)
    return xp.maximum(m / rows, 1.0), xp.maximum(n / columns, 1.0)


def hbm_bytes(m, n, k, batch, tile_m, tile_n, cores, operand_size, weight_size, result_size, l2_size):
    """Memory traffic: the blocks of a wave share operands; operands that fit the cache are read once.

    The second operand has ``weight_size`` bytes an element. At the size of the cache the traffic jumps; such products
    rarely wait for memory.
    """
    rows, columns = m * operand_size, n * weight_size  # bytes for each step of the depth
    once = k * (rows + columns)
    loads = operand_loads(rows, columns, k, *wave_blocks(m, n, tile_m, tile_n, cores))
    return batch * (xp.where(once <= l2_size, once, loads) + m * n * result_size)


def l2_loads(m, n, k, batch, tile_m, tile_n, cluster, operand_size, weight_size):
    """Traffic from cache to cores: a cluster of tiles, one above the other, reads its operands once."""
    blocks = (xp.ceil(m / (tile_m * cluster)), xp.ceil(n / tile_n))
    return operand_loads(m * operand_size, n * weight_size, batch * k, *blocks)


def partial_bytes(m, n, batch, parts, partial_size):
    """Traffic of partial results where the depth is cut: written to the cache and read to be added up."""
    return batch * m * n * xp.where(parts > 1, 2 * parts * partial_size, 0.0)


def whole_chunks(tokens, chunk):
    """Chunks before the one of the last token: none where this is the first."""
    return xp.maximum(xp.ceil(tokens / xp.maximum(chunk, 1.0)) - 1, 0.0)
