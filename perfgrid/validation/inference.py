"""Inference records as designs of the workload "inference": prompts, batches and batch rules.

Kernels of serving that were timed on their own are those of one layer in one decoding step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfgrid.engine import xp
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import only, total
from perfgrid.formulas.serving import shares
from perfgrid.formulas.serving.latency import in_pass

from .design import Mapper, Row, convention
from .quantities import trains_experts
from .schema import Kernel, Record, data


@formula(unit="s", source="fedus2022switch")
def expert_layer_busy_time(experts_time, serving_stream_time, moe_layers, load_weight):
    """Time of the routed experts of one layer in a decoding step and of routing tokens to them, by resource."""
    streams = total(serving_stream_time * only("serving_stream", "routing", "activation"), "serving_stream")
    step = in_pass(experts_time / xp.maximum(moe_layers, 1.0) + streams, "decode")
    return total(step * load_weight, "load")


@formula(unit="s", source="dao2023flash2")
def decode_attention_busy_time(decode_attention_time, layers, load_weight):
    """Time of the attention of one layer in a decoding step, by resource."""
    return total(decode_attention_time * load_weight, "load") / layers


FORMULAS = (expert_layer_busy_time, decode_attention_busy_time)
KERNELS = {"moe_layer": "expert_layer_busy_time", "decode_attention": "decode_attention_busy_time"}

QUANTITIES = {
    name: name
    for name in ("time_to_first_token", "time_per_output_token", "request_latency", "output_tokens_per_second")
}
OTHER_CONVENTIONS = ("decode_tokens_per_second", "prefill_tokens_per_second")  # a source may define them in its own way
OUTPUTS = (*QUANTITIES, *KERNELS.values(), *OTHER_CONVENTIONS, *shares.QUANTITIES, "request_bound_time")
REQUESTS_PER_CLIENT = 10  # of a closed loop whose source does not state them, as benchmarks of serving engines do
ENGINE_OPTIONS = (
    "batch_limit",
    "prefill_chunk_tokens",
    "polling_steps",
    "gathering_steps",
    "gathering_prompts",
    "prefill_launch_time",
    "routing_launches",
)
UNSTATED = {"batch": 1, "request_rate": 1.0, "ep": 1, "cp": 1}  # without effect under other batch rules


def serves(record: Record) -> bool:
    """Whether the workload "inference" predicts a record."""
    operator = record.kernel is not None and record.kernel.op in KERNELS
    return record.kind == "inference" or (operator and not trains_experts(record))


class InferenceMapper(Mapper):
    """Maps inference records one by one."""

    one_layer = ()

    def rows(self, record: Record) -> list[Row]:
        """The row of one record. Raises PerfgridError with the reason if there is none."""
        own = KERNELS.get(record.kernel.op) if record.kernel else QUANTITIES.get(record.quantity)
        quantity = (convention(record, "quantities") or {}).get(record.quantity, own)
        if quantity is None:
            raise PerfgridError(f"not modelled: {record.quantity} of a record of kind {record.kind}")
        return [Row(record.id, record, quantity, self.columns(record))]

    def _stated(self, name: str, record: Record) -> Any:
        workload = record.workload
        if record.kernel is not None and name in ("weight_precision", "kv_precision"):
            return getattr(workload, name, None)
        if record.kernel is None and workload is not None and name in ("prompt_tokens", "output_tokens"):
            return self._tokens(name, record)
        if name == "cache_slot_tokens":
            return workload.context_tokens if workload is not None and workload.prompt_tokens is not None else None
        if name == "requests":
            return self._requests(record) or 1
        if name == "loop_requests":
            clients = workload.batch if workload is not None and workload.batch_rule == "concurrency" else None
            return self._requests(record) or REQUESTS_PER_CLIENT * (clients or 0)
        if name == "batch_rule" and workload is not None and workload.batch_rule == "memory":
            return "run" if self._requests(record) else "memory"
        if name == "batch_rule" and workload is not None and workload.batch_rule == "concurrency":
            return "clients"
        value = super()._stated(name, record)
        return UNSTATED.get(name) if value is None else value

    def _of_kernel(self, name: str, kernel: Kernel) -> Any:
        """A study of one decoding step: so many tokens, or sequences with so many tokens behind each, on one device."""
        if name == "batch":
            return kernel.batch or kernel.m
        if name == "prompt_tokens":
            return kernel.sequence_length or 1
        return {"output_tokens": 2, "batch_rule": "given", "devices": 1, "tp": 1, "pp": 1, "dp": 1}.get(name)

    def _hardware(self, record: Record, columns: Mapping[str, Any]) -> dict[str, Any]:
        """As in training, with the largest number of sequences of the server if stated."""
        workload = record.workload
        stated = workload.batch if workload is not None and workload.batch_rule == "memory" else None
        found = dict(self.catalog.entry("software", columns["software"]).values)
        found |= record.engine.model_dump(exclude_none=True) if record.engine else {}
        found |= {"batch_limit": stated} if stated else {}
        found |= {"prefill_launch_time": 0.0} if found.get("prefill_graphs") else {}
        if not found.get("chunked_prompts", True):  # the server took the prompt that was measured
            found["prefill_chunk_tokens"] = max(found["prefill_chunk_tokens"], columns.get("prompt_tokens") or 0)
        return super()._hardware(record, columns) | {name: found[name] for name in ENGINE_OPTIONS}

    def _software(self, record: Record) -> str:
        """The serving stack of a source; the default for unknown sources."""
        if record.software is not None:
            return self._entry("software", record.software)
        own = data("conventions")["group"].get(record.group, {})
        trains_alone = "serving_software" not in own and "software" in own
        return self._first("software" if trains_alone else "serving_software", record)

    def _requests(self, record: Record) -> int | None:
        """Requests of a run: as stated, or from the source's table of lengths."""
        workload = record.workload
        if workload is None or workload.requests is not None:
            return workload.requests if workload else None
        lengths = [workload.prompt_tokens, workload.output_tokens]
        return next((t["requests"] for t in convention(record, "requests") or () if t["lengths"] == lengths), None)

    def _first(self, table: str, record: Record) -> str:
        """The catalog entry for a record; the topology follows from the device if known."""
        if table == "topology" and record.topology is None:
            families = [f for f in data("conventions")["device"] if record.device.startswith(f)]
            if families:
                return data("conventions")["device"][max(families, key=len)]["topology"][0]
        return super()._first(table, record)

    def _tokens(self, name: str, record: Record) -> int | None:
        """Prompt and output tokens; if only the mean context is stated, a prompt of that length and one step."""
        workload = record.workload
        assert workload is not None
        if workload.prompt_tokens is None and workload.context_tokens is not None:
            return {"prompt_tokens": workload.context_tokens, "output_tokens": 2}[name]
        return getattr(workload, name)
