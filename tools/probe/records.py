"""Records of what the probe measured: ``python -m tools.probe.records PROBE.jsonl DEVICE GROUP RECORDS.jsonl``.

A training step, a sustained matrix product, a product with few rows, and an attention pass become records as
docs/records.md describes them. The other measurements have no quantity there.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import get_args

from perfgrid.validation.schema import Record

EMPTY_PLAN = {"tp": 1, "pp": 1, "dp": 1, "cp": 1, "chunks": 1, "zero": 0, "sequence_parallel": False}
SHORTEST = 30e-6  # seconds: of shorter kernels the time between two launches of the host is measured
STACKS = {True: "pytorch-compiled", False: "pytorch"}  # by compiled


def block(name: str, /, **given: object) -> dict:
    """A block of a record with null in every field that is not given."""
    model = next(m for m in get_args(Record.model_fields[name].annotation) if m is not type(None))
    fields = {field: None for field, info in model.model_fields.items() if info.is_required()}
    return fields | given


def record(row: dict, device: str, group: str, torch: str) -> dict | None:
    """One measurement as a record, or nothing."""
    part = row["part"]
    if "error" in row or row.get("operands") == "zeros" or row.get("alone", 1.0) < SHORTEST:
        return None
    kind, kernel, model, plan, more = "kernel", None, None, None, {}
    work: dict[str, object] = {"lora": False, "packed_sft": False}
    if part == "products":
        few = row.get("rows", False)
        value = row["alone"] if few else row["sustained"]
        work |= {"precision": row["format"], "scaling": "tensor" if row["format"] == "fp8" else None}
        shape = {name: row[name] for name in ("m", "n", "k")}
        kernel = block("kernel", op="gemm", groups=1, direction="forward", version="cublas", **shape)
        label = f"{row['format']}-{row['m']}x{row['n']}x{row['k']}{'-rows' if few else ''}"
        note = "alone after a rest; four weight matrices in turn" if few else "sustained for 0.8 s, random operands"
    elif part == "attention":
        value = row["sustained"]
        work |= {"precision": "bf16", "global_batch": row["batch"]}
        shape = {name: row[name] for name in ("batch", "heads", "kv_heads", "head_dim", "direction")}
        kernel = block("kernel", op="attention", sequence_length=row["length"], causal=True, version="sdpa", **shape)
        label = f"attention-{row['direction']}-b{row['batch']}-s{row['length']}-d{row['head_dim']}"
        note = "scaled_dot_product_attention, causal, sustained for 0.4 s"
    elif part == "steps":
        kind, value = "training", row["time"]
        gqa = row["kv_heads"] != row["heads"]
        model = block(
            "model", name=f"llama {row['layers']}x{row['hidden']}", layers=row["layers"], hidden_size=row["hidden"],
            heads=row["heads"], kv_heads=row["kv_heads"], head_dim=row["hidden"] // row["heads"], ffn_size=row["ffn"],
            vocab_size=row["vocabulary"], gated_ffn=True, tied_embeddings=False, causal=True,
            attention="gqa" if gqa else "mha", parallel_block=False,
        )  # fmt: skip
        plan = block("plan", recompute="none", flash_attention=True, **EMPTY_PLAN)
        work |= {"precision": "bf16", "sequence_length": row["length"], "microbatch": row["sequences"]}
        work["global_batch"] = row["sequences"] * row["microbatches"]
        compiled = "-compiled" if row["compiled"] else ""
        label = f"step-{row['layers']}x{row['hidden']}-b{row['sequences']}-m{row['microbatches']}{compiled}"
        note = "autocast, float32 weights and moments, fused AdamW, norm of gradients, the loss read back"
        more = {"software": STACKS[row["compiled"]]}
    else:
        return None
    where = f"part {part}, PyTorch {torch}, {row.get('power', 0):.0f} W at {row.get('clock', 0) / 1e6:.0f} MHz"
    quantity = "step_time" if kind == "training" else "kernel_time"
    return {
        "id": f"{group}-{label}".lower(), "group": group, "kind": kind, "tier": "core", "predictable": True,
        "missing": [], "assumed": [], "model": model, "device": device, "devices": 1, "devices_per_node": 1,
        "scale_up_size": 1, "interconnect": {"scale_out_bandwidth": None, "note": None}, "plan": plan,
        "workload": block("workload", **work), "kernel": kernel, "collective": None, "cost": None,
        "quantity": quantity, "value": value, "reported": {"quantity": quantity, "value": value, "unit": "s"},
        "derivation": None,
        "source": {"title": "Measured with tools/probe", "where": where, "url": "https://pytorch.org"},
        "certainty": "seen", "note": note, **more,
    }  # fmt: skip


def main(probe: str, device: str, group: str, target: str) -> None:
    """Write the records of a file of measurements."""
    with open(probe, encoding="utf-8") as file:
        about, *rows = map(json.loads, file)
    found = {}
    for row in rows:
        made = record(row, device, group, about["torch"])
        if made is not None:
            found.setdefault(made["id"], made)
    with open(target, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(made, separators=(",", ":")) + "\n" for made in found.values())


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m tools.probe.records", description=(__doc__ or "").split("\n")[0])
    for name, meaning in (
        ("probe", "what the probe wrote (.jsonl)"),
        ("device", "the device of the catalog"),
        ("group", "a name for these measurements"),
        ("target", "the records to write (.jsonl), for `perfgrid validate`"),
    ):
        parser.add_argument(name, help=meaning)
    main(**vars(parser.parse_args()))
