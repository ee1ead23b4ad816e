"""Measure how many best-of-all-algorithms evaluations a CPU-second yields; ``python -m benchmarks.collectives``.

An evaluation is the time of one collective of one size on one fabric by its fastest legal algorithm. Fabrics become
tables of coefficients once; one compiled function then takes all message sizes times all fabrics.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfgrid.calculators.collective import collective_coefficients, collective_time
from perfgrid.formulas.collectives.schedules.algorithms import COLLECTIVES
from perfgrid.formulas.collectives.schedules.schedule import UNAVAILABLE, Coefficients

GB = 1e9


def fabric(*tiers: dict[str, Any], step: float = 2e-6, hop: float = 3e-7) -> dict[str, Any]:
    return {"tiers": list(tiers), "step_latency": step, "hop_latency": hop}


def tier(kind: str, shape: list[int], bandwidth: float, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "shape": shape, "bandwidth": bandwidth, **more}


FABRICS = {
    "hgx-rail": fabric(tier("switch", [8], 370 * GB), tier("rail", [64], 47 * GB)),
    "hgx-rail-only": fabric(tier("switch", [8], 370 * GB), tier("rail_only", [64], 47 * GB)),
    "hgx-fat-tree": fabric(
        tier("switch", [8], 370 * GB),
        tier("rail", [16], 47 * GB),
        tier("fat_tree", [4], 47 * GB, oversubscription=2.0),
    ),
    "nvl72": fabric(tier("switch", [72], 720 * GB), tier("rail", [8], 94 * GB)),
    "full-mesh": fabric(tier("fully_connected", [8], 45 * GB), tier("rail", [64], 47 * GB)),
    "torus-3d": fabric(tier("torus", [8, 8, 8], 45 * GB), step=5e-7),
    "torus-unequal": fabric(tier("torus", [4, 8, 16], 90 * GB), step=5e-7),
    "twisted-torus": fabric(tier("twisted_torus", [4, 4, 8], 45 * GB, twist={"0": [0, 0, 4], "1": [0, 0, 4]})),
    "torus-2d": fabric(tier("torus", [16, 16], 45 * GB), step=5e-7),
    "mesh": fabric(tier("mesh", [24, 20], 200 * GB), step=1e-7, hop=2e-8),
    "hypercube": fabric(tier("hypercube", [2] * 9, 25 * GB)),
    "hyperx": fabric(tier("hyperx", [8, 8, 8], 12 * GB)),
    "dragonfly": fabric(tier("dragonfly", [4, 8, 33], 47 * GB, global_links_per_router=4)),
    "ring": fabric(tier("ring", [64], 45 * GB)),
}


def tables() -> tuple[list[tuple[str, str]], Coefficients]:
    """(fabric, collective) pairs and their coefficients ``[algorithm, pair, 1]``; absent ones are unavailable."""
    pairs = [(name, collective) for name in FABRICS for collective in COLLECTIVES]
    found = [list(collective_coefficients(FABRICS[name], collective).values()) for name, collective in pairs]
    shape = (max(map(len, found)), len(pairs), 1)
    columns = {field: np.zeros(shape) for field in Coefficients.__dataclass_fields__}
    columns["latency"][:] = UNAVAILABLE
    for column, options in enumerate(found):
        plain_first = sorted(options, key=lambda c: float(c.chunk_latency))  # so that few rows have chunks
        rows = range(len(options) - 1, -1, -1)
        for row, option in zip(rows, plain_first, strict=True):
            for field, values in columns.items():
                values[row, column, 0] = float(getattr(option, field))
    return pairs, Coefficients(**columns)


def best_time(coefficients: Coefficients, size: Any, chunked: tuple[bool, ...]) -> Any:
    """Least time over the algorithms, the first axis of the coefficients; rows without chunks skip their term."""
    least = jnp.float32(UNAVAILABLE)
    for row, has_chunks in enumerate(chunked):
        c = jax.tree.map(lambda x, row=row: x[row], coefficients)
        time_of_row = c.time(size) if has_chunks else c.latency + c.inverse_bandwidth * size
        least = jnp.minimum(least, time_of_row)
    return least


def measure(sizes: int, repeats: int) -> dict[str, Any]:
    """Evaluations per CPU-second (user + system) in the steady state, and a check against single calls."""
    start = time.perf_counter()
    pairs, coefficients = tables()
    built = time.perf_counter() - start
    chunked = tuple(bool(np.any(row)) for row in coefficients.chunk_latency)
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), coefficients)
    size = jnp.asarray(np.geomspace(1e3, 1e10, sizes), jnp.float32)
    compiled = jax.jit(best_time, static_argnums=2)
    result = np.asarray(compiled(single, size, chunked))
    worst = 0.0
    for column, (name, collective) in enumerate(pairs):
        for index in np.linspace(0, sizes - 1, 7).astype(int):
            at = {"collective": collective, "topology": FABRICS[name], "size": float(size[index])}
            names = collective_coefficients(FABRICS[name], collective)
            single_call = min(collective_time(algorithm=n, **at) for n in names)
            worst = max(worst, abs(float(result[column, index]) / single_call - 1))
    rates = []
    for _ in range(repeats):
        begin = time.process_time()
        jax.block_until_ready(compiled(single, size, chunked))
        rates.append(len(pairs) * sizes / (time.process_time() - begin))
    algorithms = int(np.sum(coefficients.latency < UNAVAILABLE))
    return {
        "fabrics": len(FABRICS),
        "collectives": len(COLLECTIVES),
        "algorithms": algorithms,
        "most_algorithms_of_one": int(coefficients.latency.shape[0]),
        "sizes": sizes,
        "evaluations": len(pairs) * sizes,
        "table_seconds": built,
        "evaluations_per_cpu_second": statistics.median(rates),
        "algorithm_times_per_cpu_second": statistics.median(rates) * algorithms / len(pairs),
        "largest_relative_error": worst,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, default=1 << 15, help="message sizes")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    print(json.dumps(measure(options.sizes, options.repeats), indent=2))


if __name__ == "__main__":
    main()
