"""Which values of a user's device have an effect on answers about training, serving and cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perfgrid.catalog import Catalog, Entry
from perfgrid.study.ledger import unread
from perfgrid.study.study import Study, build_study

MODEL = "llama-3.1-8b"
LAYOUT = {"devices": [8], "tp": [1], "pp": [1]}
QUESTIONS: tuple[dict[str, Any], ...] = (  # every format of numbers and every view of prices among them
    {
        "workload": "training",
        "outputs": [
            "step_time",
            "memory_per_device",
            "cost_per_training_run",
            "step_energy",
            "carbon_per_training_run",
        ],
        "axes": {
            "precision": ["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"],
            "price_view": ["market", "manufacturing"],
        },
        "workload_parameters": {"sequence_length": 2048, "global_batch": 8, "training_tokens": 1e9},
    },
    {
        "workload": "inference",
        "outputs": ["time_to_first_token", "time_per_output_token", "cost_per_million_output_tokens"],
        "axes": {"precision": ["bf16", "int8"]},
        "workload_parameters": {"prompt_tokens": 1000, "output_tokens": 100, "batch_rule": "memory"},
    },
    {"workload": "manufacturing", "outputs": ["manufacturing_cost", "circuit_energy"], "axes": {}},
)


def effects(catalog: Catalog, entry: Entry) -> Iterator[str]:
    """What a device states beside the entry that it extends to no effect, and what of its usual fabric it replaces."""
    if entry.kind != "device" or not entry.stated:
        return
    studies = [_study(catalog, entry.name, content) for content in QUESTIONS]
    lost = [{one.quantity for one in unread(study) if one.entry == ("device", entry.name)} for study in studies]
    if nowhere := sorted(set.intersection(*lost)):
        yield f"no answer about training, serving or cost rests on {', '.join(nowhere)}"
    yield from dict.fromkeys(note for study in studies for note in study.notes)


def _study(catalog: Catalog, device: str, content: dict[str, Any]) -> Study:
    axes = {"device": [device], **content["axes"]}
    if content["workload"] != "manufacturing":
        axes |= {"model": [MODEL], "parallelism": LAYOUT}
    return build_study({**content, "axes": axes}, f"device {device}", catalog)
