"""Numbers of one version of perfgrid, for `tools.compare_versions`: run in the root of its tree, one section a call.

Only commands and names that every version has are used, so that the same file measures old and new trees alike.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import perfgrid as pg
from perfgrid.cli.arguments import study_of

STUDIES = Path("studies")
FILES = [*sorted(STUDIES.glob("*.toml")), *sorted(STUDIES.glob("papers/*.toml"))]
STORED_POINTS = 700  # of the largest study whose results the tests store
DRAWN = 20  # studies drawn at random
AXES = {  # of drawn studies: name -> legal values, and how many of them at most
    "model": (["gpt3-175b", "llama-3.1-70b", "llama-3.1-405b", "mixtral-8x7b", "deepseek-v3", "gemma-2-27b"], 3),
    "device": (["a100-sxm-80gb", "h100-sxm-80gb", "b200", "mi300x", "tpu-v5p"], 2),
    "topology": (["rail-optimized", "fat-tree-2to1", "ici-ring", "dragonfly-72", "tpu-torus-8x8x8"], 2),
    "software": (["megatron-lm", "megatron-core", "maxtext", "torchtitan", "deepspeed"], 2),
    "microbatch": ([1, 2, 4], 2),
    "precision": (["bf16", "fp8"], 2),
    "recompute": (["none", "selective", "full"], 3),
    "schedule": (["1f1b", "gpipe", "zb_h1", "zb_v", "dualpipe", "dualpipe_v"], 4),
    "sequence_parallel": ([True, False], 2),
    "flash_attention": ([True, False], 2),
    "zero": ([0, 1, 2, 3], 2),
    "cp_method": (["ring", "all_gather", "ulysses"], 1),
}
LAYOUTS = {
    "devices": ([8, 24, 64, 512], 2),
    "tp": ([1, 2, 4, 8, 16], 3),
    "pp": ([1, 2, 3, 4, 8], 2),
    "cp": ([1, 2, 4], 2),
    "chunks": ([1, 2, 3], 2),
    "ep": ([1, 2, 8], 2),
}
OUTPUTS = [
    "step_time",
    "memory_per_device",
    "state_memory",
    "activation_memory",
    "model_flops_utilization",
    "device_time",
    "step_energy",
    "tp_gather_time",
    "dp_reduction_time",
    "layer_forward_time",
    "layer_backward_time",
    "bubble_time",
    "cluster_cost",
    "tokens_per_second",
]


def numbers(data: Any) -> dict[str, np.ndarray]:
    """A Dataset or plain data (dicts, lists, numbers, dataclasses) as arrays by path; text as it is."""
    found: dict[str, np.ndarray] = {}

    def add(path: str, value: Any) -> None:
        if isinstance(value, xr.Dataset):
            for name, variable in (*value.data_vars.items(), *value.coords.items()):
                dims = ",".join(map(str, variable.dims))
                found[f"{path}/{name}[{dims}]{variable.attrs.get('units', '')}"] = variable.values
        elif isinstance(value, Mapping):
            for key, item in value.items():
                add(f"{path}/{key}", item)
        elif isinstance(value, (list, tuple)):
            if value and all(isinstance(item, dict) and item.keys() == value[0].keys() for item in value):
                add(path, {key: [item[key] for item in value] for key in value[0]})  # a table, column by column
            elif value and all(isinstance(item, (bool, int, float, str)) for item in value):
                found[path] = np.asarray(value)
            else:
                for place, item in enumerate(value):
                    add(f"{path}/{place}", item)
        elif hasattr(value, "__dataclass_fields__"):
            add(path, {name: getattr(value, name) for name in value.__dataclass_fields__})
        elif isinstance(value, (bool, int, float, str, np.number, np.ndarray)):
            found[path] = np.asarray(value)

    add("", data)
    found = {path.strip("/").replace("/", "|"): array for path, array in found.items()}
    return {path: np.char.encode(a.astype(str)) if a.dtype.kind in "OU" else a for path, a in found.items()}


def command(*words: str) -> Any:
    """What a command prints with ``--json``."""
    done = subprocess.run([sys.executable, "-m", "perfgrid", *words, "--json"], capture_output=True, text=True)
    if done.returncode:
        return {"error": True}
    return json.loads(done.stdout)


def studies() -> dict[str, Any]:
    """Every study in float64; the largest in float32."""
    found = {}
    for path in FILES:
        study = study_of(path, None, None)
        found[path.stem] = pg.evaluate(study, "float32" if study.space.points > 2e6 else "float64")
    return found


def drawn() -> dict[str, Any]:
    """Studies drawn at random, in single and double precision."""
    found = {}
    for seed in range(DRAWN):
        generator = np.random.default_rng(seed)

        def some(values: list[Any], most: int, generator: np.random.Generator = generator) -> list[Any]:
            count = int(generator.integers(1, most + 1))
            return [values[int(i)] for i in sorted(generator.choice(len(values), count, replace=False))]

        axes: dict[str, Any] = {name: some(*legal) for name, legal in AXES.items()}
        axes["parallelism"] = {name: some(*legal) for name, legal in LAYOUTS.items()}
        for name in axes["parallelism"]:
            if name != "devices":
                axes["parallelism"][name] = sorted({1, *axes["parallelism"][name]})
        sizes = {"sequence_length": int(generator.choice([512, 2048, 3000])), "global_batch": 96}
        study = pg.Study.make(outputs=OUTPUTS, axes=axes, workload_parameters=sizes)
        found[f"drawn_{seed}"] = pg.evaluate(study, ("float32", "float64")[seed % 2])
    return found


def stored() -> dict[str, Any]:
    """The small studies in float64: what `tests/test_stored_results.py` holds later versions to."""
    alone = [path for path in FILES if "[prefill" not in path.read_text()]  # not of two pools
    made = {path.stem: pg.load_study(path) for path in alone}
    return {name: pg.evaluate(study, "float64") for name, study in made.items() if study.space.points < STORED_POINTS}


def calculators() -> dict[str, Any]:
    """All cases of collectives and of chiplet packages that the tests hold."""
    collectives = json.loads(Path("tests/network/collective_cases.json").read_text())["cases"]
    chiplets = json.loads(Path("tests/cost/actuary_cases.json").read_text())["cases"]
    return {
        "collectives": [pg.collective_time(**entry["case"]) for entry in collectives],
        "chiplets": [pg.chiplet_cost(parameter_set="actuary2022", **case["inputs"]) for case in chiplets],
    }


def validation() -> dict[str, Any]:
    """Predictions of all records."""
    return {"seen": command("validate"), "unseen": command("validate", "--unseen")}


def derivatives() -> dict[str, Any]:
    """Elasticities and gradients of training and serving, exact and smooth."""
    training = pg.load_study(STUDIES / "papers" / "korthikanti.toml")
    serving = pg.load_study(STUDIES / "chat_service.toml")
    return {
        "elasticities": pg.sensitivity(training, of="step_time", wrt="all").sortby("parameter"),
        "gradients": pg.gradient(training, "step_time", wrt=["hbm_bandwidth", "matrix_efficiency"]),
        "serving": pg.sensitivity(serving, wrt=["hbm_bandwidth", "peak_bf16_rate"]),
    }


def searches() -> dict[str, Any]:
    """Best designs, Pareto-optimal ones and optima."""
    quickstart, deepseek = (pg.load_study(STUDIES / f"{name}.toml") for name in ("quickstart", "deepseek"))
    accelerator = pg.load_study(STUDIES / "design_accelerator.toml", ['axes.node=["n5"]'])
    return {
        "best": pg.best(quickstart, over=["parallelism", "microbatch", "recompute"], minimize="step_time"),
        "top": pg.best(deepseek, over=["parallelism", "microbatch", "schedule"], minimize="step_time", count=3),
        "pareto": pg.pareto(
            quickstart, over=["parallelism", "microbatch"], minimize=["step_time", "memory_per_device"]
        ),
        "optimum": pg.optimize(accelerator),
    }


def _lasting(timeline: dict[str, Any]) -> dict[str, Any]:
    """A timeline without waits of no length, which rounding makes, in an order that does not hang on rounding."""
    events = [e for e in timeline.get("events", []) if e["end"] - e["start"] > 1e-12]
    return timeline | {"events": sorted(events, key=lambda e: (round(e["start"], 9), e["device"], e["end"]))}


def designs() -> dict[str, Any]:
    """Kernels, a timeline, a comparison and prediction intervals of single designs."""
    at = ("--at", "row=22b full")
    deepseek = ("studies/deepseek.toml", "--at", "run=deepseek-v3,system=H800,schedule=dualpipe,microbatch=1")
    layout = ("--at", "parallelism=tp1.cp1.pp16.dp128.ep64")
    sides = ("--a", "device=h100-sxm-80gb", "--b", "device=b200", "--at", "model=llama-3.1-70b,devices=1024")
    return {
        "kernels": command("kernels", "studies/papers/korthikanti.toml", *at),
        "timeline": _lasting(command("timeline", *deepseek, *layout)),
        "compare": command("compare", "studies/quickstart.toml", *sides),
        "best": command("best", "studies/papers/korthikanti.toml", "--over", "row", "--minimize", "step_time"),
    }


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    f.__name__: f for f in (stored, studies, drawn, calculators, validation, derivatives, searches, designs)
}

if __name__ == "__main__":
    section, target = sys.argv[1:]
    arrays: dict[str, Any] = numbers(SECTIONS[section]())
    np.savez_compressed(target, **arrays)
