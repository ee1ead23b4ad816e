"""Calibration of a cluster of one's own, tried where the truth is known and on published sweeps.

    python -m benchmarks.calibration [--clusters 20] [--seeds 5] [--json benchmarks/calibration.json]

* drawn: each cluster is the catalog with other rates of device and links, other latencies and host times, all drawn.
  12 steps of drawn layouts with 5 % noise calibrate it; errors are of 40 other layouts on other numbers of devices.
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
from pathlib import Path
from typing import Any

import numpy as np

from perfgrid.catalog import Catalog, load_catalog
from perfgrid.formulas import registry_of
from perfgrid.engine.errors import PerfgridError
from perfgrid.results.evaluate import evaluate
from perfgrid.study.study import Study
from perfgrid.validation.cluster import calibrate_cluster
from perfgrid.validation.design import designs
from perfgrid.validation.fastest import WHOLE, column, violated
from perfgrid.validation.measured import Measured
from perfgrid.validation.quantities import FORMULAS
from perfgrid.validation.schema import Record, read_records

DEVICE, TOPOLOGY, SOFTWARE = "h100-sxm-80gb", "rail-optimized", "megatron-core"
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "gpt3-13b")
SEEN, UNSEEN = (32, 64, 128), (16, 256, 512, 1024)  # devices
NOISE = 0.05
ROWS, OTHERS = 12, 40
SWEEP_ROWS, FEWEST = 8, 40
ON_CHIP = ("matrix_efficiency", "fp8_matrix_efficiency", "vector_rate", "special_function_rate", "l2_bandwidth", "shared_memory_bandwidth", "register_bandwidth")  # fmt: skip


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


def record(catalog: Catalog, number: int, model: str, devices: int, plan: Mapping[str, Any], **workload: Any) -> Record:
    """A step of a drawn design, not yet measured."""
    values = catalog.entry("model", model).values
    fields = ("layers", "hidden_size", "heads", "kv_heads", "head_dim", "ffn_size", "vocab_size", "gated_ffn", "tied_embeddings")  # fmt: skip
    counts = {
        name: values[name] if isinstance(values[name], bool) else int(float(str(values[name]))) for name in fields
    }
    none = dict.fromkeys(("mla", "window", "window_layers", "parallel_block", "moe"))
    empty = dict.fromkeys(("scaling", "weight_precision", "kv_precision", "prompt_tokens", "output_tokens", "context_tokens", "batch", "batch_rule", "requests", "request_rate", "load_balanced"))  # fmt: skip
    unstated = dict.fromkeys(("ep", "etp", "chunks", "zero_size", "offload", "tp_overlap", "dp_overlap"))
    return Record.model_validate(
        {
            "id": f"drawn-{number}",
            "group": "drawn",
            "kind": "training",
            "tier": "core",
            "predictable": True,
            "missing": [],
            "assumed": [],
            "model": {"name": model, **counts, **none, "causal": True, "attention": "gqa", "mtp_layers": 0},
            "device": DEVICE,
            "devices": devices,
            "devices_per_node": 8,
            "scale_up_size": 8,
            "interconnect": None,
            "plan": {**unstated, "flash_attention": True, "sequence_parallel": True, "schedule": "1f1b", **plan},
            "workload": {**empty, "precision": "bf16", "lora": False, "packed_sft": False, **workload},
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
            plan = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "zero": int(rng.choice((0, 1)))}
            plan["recompute"] = str(rng.choice(("none", "selective", "full")))
            tried += 1
            model, length = str(rng.choice(MODELS)), int(rng.choice((4096, 8192)))
            drawn.append(record(catalog, tried, model, devices, plan, sequence_length=length, global_batch=batch, microbatch=microbatch))  # fmt: skip
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
    """A cluster's values in place of the catalog's: chip 0.6 to 1, memory and links apart, host and gaps 1 to 3."""
    catalog = load_catalog()
    chip, memory = rng.uniform(0.6, 1.0), rng.uniform(0.6, 1.0)
    scale_up, scale_out, host, gap = rng.uniform(0.3, 1), rng.uniform(0.3, 1), rng.uniform(1, 3), rng.uniform(1, 3)
    factors = {("device", DEVICE, name): chip for name in ON_CHIP}
    factors |= {("device", DEVICE, "hbm_efficiency"): memory}
    factors |= {
        ("device", DEVICE, "scale_up_efficiency"): scale_up,
        ("device", DEVICE, "scale_out_efficiency"): scale_out,
    }
    factors |= {("software", SOFTWARE, "host_launch_time"): host, ("software", SOFTWARE, "step_gap"): gap}
    values = {key: float(str(catalog.entry(*key[:2]).values[key[2]])) * factor for key, factor in factors.items()}
    return {".".join(key): value for key, value in values.items()}


def measured(records: Sequence[Record], times: np.ndarray) -> list[Record]:
    """The records with these times."""
    return [
        r.model_copy(update={"value": float(t), "reported": r.reported.model_copy(update={"value": float(t)})})
        for r, t in zip(records, times, strict=True)
    ]


def times_of(catalog: Catalog, records: Sequence[Record]) -> np.ndarray:
    """Predicted times with a catalog."""
    known = Measured(catalog, records)
    count = len(records)
    return np.exp(known.evaluated(np.arange(count), np.zeros((count, 0)), ())[0]) * known.measured


def outcome(name: str, given: Sequence[Record], others: Sequence[Record], exact: np.ndarray | None = None) -> Outcome:
    """Calibrated on the given rows, errors on the others."""
    catalog = load_catalog()
    found = calibrate_cluster(Measured(catalog, given))
    far = Measured(catalog, others)
    count, fit = len(far.rows), found.chosen.fit
    every = np.arange(count)
    plain = far.evaluated(every, np.zeros((count, 0)), (), False)[0]
    logs = far.evaluated(every, np.tile(fit.point, (count, 1)), fit.names, False)[0]
    factor = np.median(found.candidates["nothing"].fit.errors)
    known = None if exact is None else logs + np.log(far.measured) - np.log(exact)

    def error(values: np.ndarray) -> float:
        return float(np.median(np.abs(values)))

    return Outcome(
        name, len(given), count, error(plain), error(plain - factor), error(logs), found.chosen.name,
        None if known is None else error(known),
    )  # fmt: skip


def synthetic(seed: int) -> Outcome:
    """One drawn cluster."""
    rng, catalog = np.random.default_rng(seed), load_catalog()
    truth = catalog.with_values(drawn_cluster(rng))
    given, others = layouts(catalog, rng, SEEN, ROWS), layouts(catalog, rng, UNSEEN, OTHERS)
    times, exact = times_of(truth, given), times_of(truth, others)
    noisy = exact * np.exp(NOISE * rng.standard_normal(OTHERS))
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
            known = Measured(catalog, records)
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
    parser.add_argument("--seeds", type=int, default=5, help="of each sweep, and of the uniformly slower cluster")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, list[Outcome]] = {"drawn": [], "uniform": [], "sweeps": []}
    for seed in range(arguments.clusters):
        found["drawn"].append(synthetic(seed))
        print(found["drawn"][-1], flush=True)
    for seed in range(arguments.seeds):
        found["uniform"].append(uniform(seed))
        print(found["uniform"][-1], flush=True)
    if arguments.seeds:
        for name, records in sweeps().items():
            for seed in range(arguments.seeds):
                try:
                    found["sweeps"].append(sweep(name, records, seed))
                    print(found["sweeps"][-1], flush=True)
                except PerfgridError as error:
                    print(name, error)
    if arguments.json:
        arguments.json.write_text(json.dumps({k: [asdict(o) for o in v] for k, v in found.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
