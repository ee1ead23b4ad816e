"""Calibration of your own cluster, tried where the truth is known and on published sweeps.

    python -m benchmarks.calibration [--clusters 20] [--seeds 5] [--json benchmarks/calibration.json]

* drawn: each cluster is the catalog with other rates of device and links, other latencies and host times, all drawn.
  12 steps of drawn layouts with 5 % noise calibrate it; errors are of 32 other layouts on other numbers of devices.
* uniform: all steps take 1.25 times as long, 14 rows with noise.
* sweeps: sources of at least 40 rows; 8 of them calibrate, the rest is predicted.

Errors are medians of |ln(predicted / measured)|. Beside them: the catalog as it is, and the best constant factor (the
median ratio of the rows given). Nothing is tuned for a cluster or a source.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from perfgrid.catalog import Catalog, load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas import registry_of
from perfgrid.results.evaluate import evaluate
from perfgrid.study.study import Study
from perfgrid.validation.cluster import calibrate_cluster
from perfgrid.validation.cluster_file import cluster_file
from perfgrid.validation.cluster_rows import ClusterRows
from perfgrid.validation.design import designs
from perfgrid.validation.fastest import WHOLE, column, violated
from perfgrid.validation.quantities import FORMULAS
from perfgrid.validation.schema import UNITS, Record, Reported, read_records
from perfgrid.validation.validate import validate

DEVICE, TOPOLOGY, SOFTWARE = "h100-sxm-80gb", "rail-optimized", "megatron-core"
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "gpt3-13b")
SEEN, UNSEEN = (32, 64, 128), (16, 256, 512, 1024)  # devices
NOISE = 0.05
ROWS, OTHERS = 12, 32
SWEEP_ROWS, FEWEST = 8, 40
ON_CHIP = (
    *("matrix_efficiency", "fp8_matrix_efficiency", "vector_rate", "special_function_rate"),
    *("l2_bandwidth", "shared_memory_bandwidth", "register_bandwidth"),
)
FIELDS = (
    *("layers", "hidden_size", "heads", "kv_heads", "head_dim", "ffn_size", "vocab_size"),
    *("gated_ffn", "tied_embeddings"),
)
UNSTATED = {
    "model": ("mla", "window", "window_layers", "parallel_block", "moe"),
    "plan": ("ep", "etp", "chunks", "zero_size", "offload", "tp_overlap", "dp_overlap"),
    "workload": (
        *("scaling", "weight_precision", "kv_precision", "prompt_tokens", "output_tokens", "context_tokens"),
        *("batch", "batch_rule", "requests", "request_rate", "load_balanced"),
    ),
}


@dataclass(frozen=True)
class Outcome:
    """Errors on rows that were not given, and the set of factors that was chosen."""

    name: str
    rows: int
    others: int
    catalog: float
    constant: float
    calibrated: float
    chosen: str
    exact: float | None = None  # the calibrated error beside the truth without noise
    covered: float | None = None  # share of these rows within the intervals of the written catalog file


def record(catalog: Catalog, number: int, model: str, devices: int, plan: Mapping[str, Any], **workload: Any) -> Record:
    """A step of a drawn design, not yet measured."""
    values = catalog.entry("model", model).values
    counts = {
        name: values[name] if isinstance(values[name], bool) else int(float(str(values[name]))) for name in FIELDS
    }
    unstated = {block: dict.fromkeys(names) for block, names in UNSTATED.items()}
    return Record.model_validate(
        {
            "id": f"drawn-{number}",
            "group": "drawn",
            "kind": "training",
            "tier": "core",
            "predictable": True,
            "missing": [],
            "assumed": [],
            "model": {
                "name": model,
                **counts,
                **unstated["model"],
                "causal": True,
                "attention": "gqa",
                "mtp_layers": 0,
            },
            "device": DEVICE,
            "devices": devices,
            "devices_per_node": 8,
            "scale_up_size": 8,
            "interconnect": None,
            "plan": {
                **unstated["plan"],
                "flash_attention": True,
                "sequence_parallel": True,
                "schedule": "1f1b",
                **plan,
            },
            "workload": {**unstated["workload"], "precision": "bf16", "lora": False, "packed_sft": False, **workload},
            "kernel": None,
            "collective": None,
            "cost": None,
            "quantity": "step_time",
            "value": 1.0,
            "reported": {"quantity": "step_time", "value": 1.0, "unit": "s"},
            "derivation": None,
            "source": {"title": "drawn", "where": None, "url": None},
            "certainty": "seen",
            "note": "",
            "software": SOFTWARE,
            "topology": TOPOLOGY,
        }
    )


def layouts(catalog: Catalog, rng: np.random.Generator, sizes: Sequence[int], count: int) -> list[Record]:
    """Steps of drawn legal designs that fit the memory."""
    tried, kept = 0, list[Record]()
    while len(kept) < count:
        drawn = []
        while len(drawn) < 4 * count:
            devices, tp, pp, cp = (int(rng.choice(v)) for v in (sizes, (1, 2, 4, 8), (1, 2, 4, 8), (1, 1, 2)))
            if devices % (tp * pp * cp):
                continue
            dp, microbatch = devices // (tp * pp * cp), int(rng.choice((1, 2, 4)))
            batch = dp * microbatch * int(rng.choice((1, 2, 4, 8, 16)))
            plan: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "zero": int(rng.choice((0, 1)))}
            plan["recompute"] = str(rng.choice(("none", "selective", "full")))
            tried += 1
            model, length = str(rng.choice(MODELS)), int(rng.choice((4096, 8192)))
            workload = {"sequence_length": length, "global_batch": batch, "microbatch": microbatch}
            drawn.append(record(catalog, tried, model, devices, plan, **workload))
        kept += legal(catalog, drawn)
    return kept[:count]


def legal(catalog: Catalog, drawn: Sequence[Record]) -> list[Record]:
    """Those that are legal and fit the memory."""
    mapped = designs(drawn, catalog, registry_of("training"))
    study = Study.make(
        mapped.catalog, FORMULAS, title="drawn", outputs=["step_time", "fits_memory"], dtype="float64",
        axes={"row": mapped.axis()},
    )  # fmt: skip
    result = evaluate(study, small_points=WHOLE)
    fits, broken = column(result["fits_memory"], len(mapped.rows)), violated(result, mapped.rows)
    return [row.record for row, fit, why in zip(mapped.rows, fits, broken, strict=True) if fit and not why]


def drawn_cluster(rng: np.random.Generator) -> dict[str, Any]:
    """A cluster's values in place of the catalog's.

    The chip reaches 0.6 to 1 of its rates, of each a further 0.9 to 1; memory 0.6 to 1, links 0.3 to 1 each, overlap
    0.8 to 1; the host takes 1 to 3 times as long, and so do gaps; latencies 1 to 2 times.
    """
    catalog, chip = load_catalog(), rng.uniform(0.6, 1.0)
    factors: dict[tuple[str, str, str], float] = {
        ("device", DEVICE, name): chip * rng.uniform(0.9, 1.0) for name in ON_CHIP
    }
    factors |= {("device", DEVICE, "hbm_efficiency"): rng.uniform(0.6, 1.0)}
    factors |= {("device", DEVICE, f"{tier}_efficiency"): rng.uniform(0.3, 1) for tier in ("scale_up", "scale_out")}
    factors |= {("software", SOFTWARE, name): rng.uniform(0.8, 1) for name in ("dp_overlap", "tp_overlap")}
    factors |= {("software", SOFTWARE, name): rng.uniform(1, 3) for name in ("host_launch_time", "step_gap")}
    factors |= {("topology", TOPOLOGY, "library_launch_latency"): rng.uniform(1, 2)}
    values: dict[tuple[str, str, str], Any] = {
        key: float(str(catalog.entry(*key[:2]).values[key[2]])) * factor for key, factor in factors.items()
    }
    late = rng.uniform(1, 2)
    steps = catalog.entry("topology", TOPOLOGY).values["tier_step_latency"]
    assert isinstance(steps, dict)
    values |= {("topology", TOPOLOGY, "tier_step_latency"): {tier: late * v for tier, v in steps.items()}}
    return {".".join(key): value for key, value in values.items()}


def measured(records: Sequence[Record], times: np.ndarray) -> list[Record]:
    """The records with these values."""
    found = []
    for r, value in zip(records, map(float, times), strict=True):
        reported = Reported(quantity=r.quantity, value=value, unit=UNITS[r.quantity])
        found.append(r.model_copy(update={"value": value, "reported": reported}))
    return found


def times_of(catalog: Catalog, records: Sequence[Record]) -> np.ndarray:
    """Predicted times with a catalog."""
    known = ClusterRows(catalog, records)
    count = len(records)
    return np.exp(known.evaluated(np.arange(count), np.zeros((count, 0)), ())[0]) * known.measured


def outcome(name: str, given: Sequence[Record], others: Sequence[Record], exact: np.ndarray | None = None) -> Outcome:
    """Calibrated on the given rows, errors on the others with the catalog file that the command writes."""
    catalog = load_catalog()
    found = calibrate_cluster(ClusterRows(catalog, given))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "mine.toml"
        file.write_text(cluster_file(found, date.today()), encoding="utf-8")
        mine = load_catalog(file)
    plain, logs = (np.log(times_of(c, others) / [r.value for r in others]) for c in (catalog, mine))
    factor = np.median(found.candidates["nothing"].fit.errors)
    covered = None
    if exact is not None:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "others.jsonl"
            file.write_text("".join(f"{r.model_dump_json()}\n" for r in others), encoding="utf-8")
            inside = [p.covered for p in validate(file, catalog=mine).predictions]
        covered = float(np.mean([bool(one) for one in inside]))
    return Outcome(
        name=name,
        rows=len(given),
        others=len(others),
        catalog=_median(plain),
        constant=_median(plain - factor),
        calibrated=_median(logs),
        chosen=found.chosen.name,
        exact=None if exact is None else _median(logs + np.log([r.value for r in others]) - np.log(exact)),
        covered=covered,
    )


def _median(logs: np.ndarray) -> float:
    return float(np.median(np.abs(logs)))


def synthetic(seed: int, count: int = OTHERS) -> Outcome:
    """One drawn cluster; errors are of so many other layouts."""
    rng, catalog = np.random.default_rng(seed), load_catalog()
    truth = catalog.with_values(drawn_cluster(rng))
    given, others = layouts(catalog, rng, SEEN, ROWS), layouts(catalog, rng, UNSEEN, count)
    times, exact = times_of(truth, given), times_of(truth, others)
    noisy = exact * np.exp(NOISE * rng.standard_normal(count))
    given = measured(given, times * np.exp(NOISE * rng.standard_normal(ROWS)))
    return outcome(f"cluster {seed}", given, measured(others, noisy), exact)


def uniform(seed: int, slower: float = 1.25, rows: int = 14) -> Outcome:
    """A cluster on which every step takes so many times as long."""
    rng, catalog = np.random.default_rng(seed), load_catalog()
    given, others = layouts(catalog, rng, SEEN, rows), layouts(catalog, rng, UNSEEN, OTHERS)
    exact = slower * times_of(catalog, others)
    noisy = exact * np.exp(NOISE * rng.standard_normal(OTHERS))
    given = measured(given, slower * times_of(catalog, given) * np.exp(NOISE * rng.standard_normal(rows)))
    return outcome(f"uniformly {slower:g} times slower, {seed}", given, measured(others, noisy), exact)


def sweeps() -> dict[str, list[Record]]:
    """Sources with at least 40 predicted rows of one device, by name and device."""
    catalog, found = load_catalog(), dict[str, list[Record]]()
    for r in read_records(catalog=catalog)[0]:
        if r.tier == "core" and r.predictable and r.kind in ("training", "kernel", "collective", "inference"):
            found.setdefault(f"{r.group} on {r.device}", []).append(r)
    kept = {}
    for name, records in found.items():
        if len(records) >= FEWEST:
            known = ClusterRows(catalog, records)
            if len(known.rows) >= FEWEST:
                kept[name] = [row.record for row in known.rows]
    return kept


def sweep(name: str, records: Sequence[Record], seed: int) -> Outcome:
    """8 rows of a source calibrate, the rest is predicted."""
    order = np.random.default_rng(seed).permutation(len(records))
    given, others = ([records[i] for i in part] for part in (order[:SWEEP_ROWS], order[SWEEP_ROWS:]))
    return outcome(name, given, others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=5, help="of each sweep, and of the uniformly slower cluster")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, list[Outcome]] = {"drawn": [], "uniform": [], "sweeps": []}
    for seed in range(arguments.first, arguments.first + arguments.clusters):
        found["drawn"].append(synthetic(seed))
        print(found["drawn"][-1], flush=True)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    for seed in seeds:
        found["uniform"].append(uniform(seed))
        print(found["uniform"][-1], flush=True)
    if arguments.seeds:
        for name, records in sweeps().items():
            for seed in seeds:
                try:
                    found["sweeps"].append(sweep(name, records, seed))
                    print(found["sweeps"][-1], flush=True)
                except PerfgridError as error:
                    print(name, error)
    if arguments.json:
        arguments.json.write_text(json.dumps({k: [asdict(o) for o in v] for k, v in found.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
