"""Kernels of sequence mixers as designs of the workload "sequence_mixer": one layer on one device."""

from __future__ import annotations

from typing import Any

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.registry import formula

from .design import Mapper, Row
from .schema import Kernel, Record


@formula(unit="s", source="yang2024fla")
def mixer_core_training_time(mixer_core_forward_time, mixer_core_backward_time):
    """Forward and backward time of the core."""
    return mixer_core_forward_time + mixer_core_backward_time


FORMULAS = (mixer_core_training_time,)
KERNELS = {  # (operator, direction) -> quantity
    ("mixer", "forward"): "mixer_core_forward_time",
    ("mixer", "forward_backward"): "mixer_core_training_time",
    ("mixer_decode", "forward"): "mixer_decode_core_time",
    ("mixer_layer", "forward"): "mixer_forward_time",
}
WORK = {"mixer_decode": "mixer_decode_flops"}  # FLOPs of an operator; of the others those of the core over a prompt
OUTPUTS = (*KERNELS.values(), "mixer_core_flops", *WORK.values())
WIDTH = 4096  # of a layer whose core alone is timed: without effect


def mixes(record: Record) -> bool:
    """Whether the workload "sequence_mixer" predicts a record."""
    return record.kernel is not None and record.kernel.op in {op for op, _ in KERNELS}


def mixer_flops(kernel: Kernel, at: Any) -> float:
    """FLOPs of a mixer's kernel; the backward pass is two forwards. ``at``: outputs of the row."""
    forward = float(at[WORK.get(kernel.op, "mixer_core_flops")].sum())
    return forward * (3.0 if kernel.direction == "forward_backward" else 1.0)


class MixerMapper(Mapper):
    """Maps kernels of mixers one by one; what a record does not state has the glossary's default."""

    def rows(self, record: Record) -> list[Row]:
        """The row of one record. Raises PerfgridError with the reason if there is none."""
        kernel = record.kernel
        quantity = KERNELS.get((kernel.op, kernel.direction or "forward")) if kernel else None
        if kernel is None or quantity is None:
            raise PerfgridError(f"not modelled: {kernel and kernel.direction} of {kernel and kernel.op}")
        return [Row(record.id, record, quantity, self.columns(record))]

    def columns(self, record: Record) -> dict[str, Any]:
        """Device, software and all dimensions of a kernel."""
        kernel, model = record.kernel, record.model
        assert kernel is not None
        stated: dict[str, Any] = {"hidden_size": WIDTH, "tp": 1}
        for block in (model, model and model.mla, kernel.mixer):
            stated |= {name: value for name, value in block or () if value is not None}
        precision = record.workload.precision if record.workload else None
        stated |= {"microbatch": kernel.batch, "sequence_length": kernel.sequence_length}
        known = (v for v in self.catalog.variables.values() if v.of in ("model", "workload", "parallelism"))
        names = [v for v in known if v.name in self.read and v.name not in self.registry.formulas]
        dimensions = {v.name: stated.get(v.name, v.default) for v in names} | {"precision": precision or "bf16"}
        return {"device": record.device, "software": self._first("software", record), **dimensions}
