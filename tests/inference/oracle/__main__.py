"""What the requests of drawn systems see: ``python -m tests.inference.oracle [first [last]]`` stores it anew.

Every system runs until the 90 % interval of its percentiles is below a third of what closed forms are allowed, or until
it has had `MOST` requests; ``narrow`` says which. A line of ``simulated.json`` per system: its design, policy, lengths
and load, and of each time (first_token, per_token, latency, gap: s) and statistic the value and half of the interval;
throughput in requests per second.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

from .measures import STATISTICS, TIMES, Measure, measures
from .system import simulate
from .systems import Record, drawn, loaded, runs_of, system

SIMULATED = Path(__file__).with_name("simulated.json")
SEEDS = 520  # so many are drawn
FEWEST, MOST = 4000, 128_000  # requests
BOUNDS = {"p50": 0.10, "p90": 0.15, "p99": 0.25}  # of closed forms against the simulation
SECONDS = 12.0  # of one run at most


def width(table: dict) -> float:
    """The widest interval over a third of its bound."""
    return max(table[name][p].wide() * 3 / bound for name in TIMES for p, bound in BOUNDS.items())


def simulated(seed: int) -> Record | None:
    """A drawn system with what its requests see; None where there is none."""
    record = drawn(seed)
    if record is None:
        return None
    one = system(record)
    record, requests = loaded(record, one), FEWEST
    while True:
        begun = time.process_time()
        runs = runs_of(record, one, requests)
        table = measures([(run, simulate(one, run)) for run in runs])
        took, wide = time.process_time() - begun, width(table)
        needed = min(math.ceil(1.3 * wide**2 * requests), MOST, math.ceil(SECONDS / took * requests))
        if wide <= 1 or needed < 1.2 * requests:
            break
        requests = needed
    count = sum(len(run.output) for run in runs)
    rows = {name: {s: rounded(table[name][s]) for s in STATISTICS} for name in (*TIMES, "gap")}
    measured = rows | {"throughput": rounded(table["throughput"])}
    return record | {"requests": count, "narrow": wide <= 1, "measures": measured}


def rounded(measure: Measure) -> list[float]:
    """Value and half of the interval in five digits."""
    return [float(f"{measure.value:.5g}"), float(f"{measure.half:.2g}")]


def stored() -> list[Record]:
    """The systems of the file."""
    return json.loads(SIMULATED.read_text()) if SIMULATED.exists() else []


def main(first: int = 0, last: int = SEEDS) -> None:
    """Simulate the systems of these seeds; others stay as they are."""
    kept = {record["seed"]: record for record in stored() if not first <= record["seed"] < last}
    for seed in range(first, last):
        begun = time.process_time()
        record = simulated(seed)
        if record is not None:
            kept[seed] = record
            took = time.process_time() - begun
            print(seed, record["structure"], record["load"], record["requests"], record["narrow"], f"{took:.1f} s")
            lines = (json.dumps(kept[key]) for key in sorted(kept))
            SIMULATED.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
