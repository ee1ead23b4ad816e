"""``python -m tools.validation.public_trainers``: memory of trainers in public logs (tests/memory/public_logs.toml).

Prints every open record with its error, and errors of both halves; of blind records only these. Records that no entry
of the catalog describes are counted: optimizers in the backward pass, Unsloth, those without a sequence or a peak.
"""

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfgrid import Study, evaluate
from perfgrid.engine.errors import PerfgridError

from .trainer_memory import GIB, show

LOGS = Path(__file__).parents[2] / "tests" / "memory" / "public_logs.toml"
STACKS = {  # of records: stack, sharding, method -> entry of the catalog
    ("hf-trainer", "none", "lora"): "hf-trainer",
    ("hf-trainer", "none", "qlora"): "hf-trainer-qlora",
    ("hf-trainer", "none", "full"): "hf-trainer",
    **{("hf-trainer", f"zero{stage}", method): "hf-deepspeed" for stage in (1, 2, 3) for method in ("lora", "full")},
    **{("hf-trainer", sharding, "qlora"): "hf-fsdp-qlora" for sharding in ("zero3", "fsdp", "fsdp2")},
    **{("hf-trainer", sharding, method): "hf-fsdp" for sharding in ("fsdp", "fsdp2") for method in ("lora", "full")},
    **{("megatron-core", f"zero{stage}", "full"): "megatron-core" for stage in (0, 1)},
    ("litgpt", "none", "lora"): "hf-trainer-bf16",
    ("litgpt", "none", "full"): "hf-trainer-bf16",
    ("litgpt", "none", "qlora"): "hf-trainer-qlora",
    ("litgpt", "fsdp", "lora"): "hf-fsdp",
    ("prime-rl", "fsdp2", "full"): "hf-fsdp",
    ("torchtune", "fsdp2", "lora"): "hf-fsdp",
    ("torchtune", "none", "lora"): "hf-trainer-bf16",
    ("torchtune", "none", "full"): "hf-trainer-bf16",
    ("torchtune", "none", "qlora"): "hf-trainer-qlora",
}
OPTIMIZERS = {
    "adamw": "adamw",
    "adam": "adamw",
    "adamw 8bit": "adamw_8bit",
    "sgd": "sgd",
    "adamw, foreach off": "adamw",
}
SINGLE_SCALES = 0.5625  # bytes of a weight in nf4 without double quantisation
APART = ("prime-rl", "torchtune")  # embedding and head are sharded apart (custom_sharded_layers, setup_fsdp)
TARGETS = {"all-linear": "all", "q_proj v_proj": "qkv", "q_proj v_proj output_proj": "attention"}
PEAKS = {"allocated", "reserved", "device"}


def said(record: Mapping[str, Any]) -> str | None:
    """The entry that describes what ran; None where there is none, or something was changed that it does not have."""
    known = "model" in record and "sequence" in record and "peak_gib" in record
    stated = record["optimizer"] in OPTIMIZERS and record.get("loss", "plain") == "plain"
    return STACKS.get((record["stack"], record["sharding"], record["method"])) if known and stated else None


def choices(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a record states of optimizer, loss and host memory."""
    found = {"optimizer": OPTIMIZERS[record["optimizer"]], "offload": record.get("offload", "none")}
    if record["stack"] == "torchtune":  # its recipes compute the loss of eight chunks
        found["cross_entropy"] = "chunked"
    return found


def predicted(record: Mapping[str, Any], software: str) -> float:
    """GiB that the source's measure counts."""
    devices, batch = record["devices"], record["microbatch"]
    tp, pp = record.get("tensor_parallel", 1), record.get("pipeline_parallel", 1)
    dp = devices // (tp * pp)
    zero = {"none": 0, "zero1": 1, "zero2": 2}.get(record["sharding"], 3)
    workload = {
        "sequence_length": record["sequence"],
        "microbatch": batch,
        "global_batch": record.get("global_batch", batch * dp * record.get("accumulation", 1)),
        "zero": zero if dp > 1 else 0,
        "lora_rank": record.get("lora_rank", 8) if record["method"] != "full" else 0,
        "lora_targets": TARGETS.get(record.get("lora_targets", "all-linear"), "all"),
        "recompute": record["recompute"] if record["recompute"] in ("none", "full", "selective") else "full",
        **choices(record),
    }
    study = Study.make(
        title="trainer",
        outputs=["memory_per_device", "reserved_memory", "allocator_memory"],
        axes={
            "model": [record["model"]],
            "device": ["b200"],  # memory depends on what runs, not on where
            "topology": ["rail-optimized"],
            "software": [software],
            "parallelism": {"devices": devices, "tp": tp, "pp": pp},
            **({"frozen_matrix_size": [SINGLE_SCALES]} if record.get("quantisation") == "nf4" else {}),
            **({"root_unit": [False]} if record["stack"] in APART else {}),
        },
        workload_parameters=workload,
    )
    at = evaluate(study).squeeze()
    allocated, own = float(at.memory_per_device - at.reserved_memory), float(at.reserved_memory)
    of = {"allocated": allocated, "reserved": float(at.allocator_memory), "device": float(at.allocator_memory) + own}
    return of[record["peak_of"]] / GIB


def main() -> None:
    """Print open records and errors of both halves."""
    errors: dict[str, list[float]] = {"open": [], "blind": []}
    left_out = Counter[str]()
    for record in tomllib.loads(LOGS.read_text(encoding="utf-8"))["trainer"]:
        half = "blind" if record["blind"] and not record.get("seen") else "open"
        software = said(record)
        if software is None:
            left_out[half] += 1
            continue
        try:
            error = predicted(record, software) / record["peak_gib"] - 1
        except PerfgridError as problem:
            left_out[half] += 1
            if half == "open":
                print(f"{record['id']}: {problem}")
            continue
        errors[half].append(error)
        if half == "open":
            print(f"{record['id']} ({software}): {record['peak_gib']:.1f} GiB of {record['peak_of']}, {error:+.1%}")
    for half, of in errors.items():
        if of:
            show(half, of)
        print(f"{half}: {left_out[half]} not described")


if __name__ == "__main__":
    main()
