"""``python -m tools.validation.trainer_memory``: memory and time of fine-tuning steps against what was measured.

Prints for every case of trainer_moments.toml each moment beside its measurement, for every report of
trainer_reports.jsonl its quantity, and errors by kind. ``--stack NAME`` predicts all cases with one entry of the
catalog instead of the stack that ran (``STACKS``).
"""

import argparse
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfgrid import Study, evaluate
from perfgrid.validation.validate import validate

HERE = Path(__file__).parent
CASES = HERE / "trainer_moments.toml"
REPORTS = HERE / "trainer_reports.jsonl"
GIB = 2**30
STACKS = {"lora": "hf-trainer", "full": "hf-trainer", "pure": "hf-trainer-bf16"}  # by method
MOMENTS = {  # measured peak -> the moments that lie in it
    "forward": ("forward_end",),
    "backward": ("loss_gradient", "layer_backward", "gradients_complete"),
    "optimizer_step": ("optimizer_step",),
}
OUTPUTS = ("memory_per_device", "reserved_memory", "allocator_memory", "step_time", "memory_by_moment")


def cases() -> list[dict[str, Any]]:
    """The measured cases."""
    return tomllib.loads(CASES.read_text(encoding="utf-8"))["case"]


def predicted(found: Sequence[Mapping[str, Any]], stack: str | None = None) -> list[dict[str, float]]:
    """Predicted GiB of each measured peak and seconds of a step, by case."""
    columns = {
        "model": [case["model"] for case in found],
        "software": [stack or STACKS[case["method"]] for case in found],
        "sequence_length": [case["sequence"] for case in found],
        "microbatch": [case["batch"] for case in found],
        "global_batch": [case["batch"] for case in found],
        "recompute": ["full" if case["checkpointing"] else "none" for case in found],
        "lora_rank": [64 if case["method"] == "lora" else 0 for case in found],
    }
    step = [case["optimizer"] for case in found]
    if stack is None:
        columns["optimizer_step"] = step
    study = Study.make(
        title="fine-tuning steps",
        outputs=[name for name in OUTPUTS if stack is None or name != "memory_by_moment"],
        axes={
            "device": ["h200"],
            "topology": ["rail-optimized"],
            "row": {"labels": [str(i) for i in range(len(found))], "zip": columns},
            "parallelism": {"devices": 1, "tp": 1, "pp": 1},
        },
        dtype="float64",
    )
    values = evaluate(study).squeeze()
    rows = []
    for i in range(len(found)):
        at = values.isel(row=i)
        peak = float(at.memory_per_device - at.reserved_memory) / GIB
        row = {"reserved": float(at.allocator_memory) / GIB, "seconds": float(at.step_time), "peak": peak}
        if stack is None:
            moments = at.memory_by_moment
            row |= {name: max(float(moments.sel(memory_moment=m)) for m in of) / GIB for name, of in MOMENTS.items()}
        rows.append(row)
    return rows


def measured(case: Mapping[str, Any]) -> dict[str, float]:
    """What was measured of a case, with the largest of its peaks."""
    return {**case, "peak": max(case[name] for name in MOMENTS)}


def show(name: str, errors: Sequence[float]) -> None:
    """One line: median, 90th percentile and largest of absolute errors."""
    sizes = np.abs(errors)
    found = {"median": np.median(sizes), "p90": np.quantile(sizes, 0.9), "largest": max(sizes)}
    print(f"{name:22} {len(sizes):3}", *(f"{of} {value:.3f}" for of, value in found.items()))


def main() -> None:
    """Print predictions beside measurements, and errors by kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stack", help="an entry of the catalog that predicts all cases")
    stack = parser.parse_args().stack
    errors = defaultdict(list)
    for case, row in zip(cases(), predicted(cases(), stack), strict=True):
        of = measured(case)
        cells = [f"{name} {value:.2f} ({value / of[name] - 1:+.1%})" for name, value in row.items()]
        layers = "checkpointed" if case["checkpointing"] else "kept"
        model = case["model"].partition("[")[0]
        print(f"{model} {case['method']} {case['batch']} x {case['sequence']} {layers}:", ", ".join(cells))
        for name, value in row.items():
            errors[name].append(value / of[name] - 1)
    for p in validate([REPORTS]).predictions:
        if p.predicted is None:
            print(f"{p.record.id}: not predicted")
            continue
        bound = p.record.note.rpartition("value is ")[2]
        verdict = f", fits {p.fits}, the report is {bound}" if "bound" in bound else ""
        print(f"{p.record.id}: {p.predicted / p.record.value - 1:+.1%}{verdict}")
        if not verdict:
            errors[f"reported {p.record.quantity}"].append(p.predicted / p.record.value - 1)
    for name, of in errors.items():
        show(name, of)


if __name__ == "__main__":
    main()
