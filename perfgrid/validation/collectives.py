"""Collectives timed on their own as designs of the workload "collectives": one group of devices, one message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfgrid.catalog import convert
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.collectives.nccl import ALGORITHMS

from .design import Mapper, Row
from .schema import Record, data

QUANTITIES = {"collective_time": "collective_time", "collective_bandwidth": "bus_bandwidth"}
OUTPUTS = (*QUANTITIES.values(), "bus_factor")
NAMES = {**ALGORITHMS, "nvls": ALGORITHMS["in_switch"]}  # as libraries call algorithms -> as studies do


def link_bytes(record: Record, at: Mapping[str, Any]) -> float:
    """Bytes over every link in a ring; 1 for a bandwidth. ``at``: outputs of the row."""
    if record.collective is None or record.quantity == "collective_bandwidth":
        return 1.0
    return float(at["bus_factor"]) * (record.collective.size or 0.0)


class CollectiveMapper(Mapper):
    """Maps collectives one by one: the first ranks of the machine, as benchmarks place them."""

    def rows(self, record: Record) -> list[Row]:
        """The row of one record. Raises PerfgridError with the reason if there is none."""
        return [Row(record.id, record, QUANTITIES[record.quantity], self.columns(record))]

    def columns(self, record: Record) -> dict[str, Any]:
        """Device, fabric, operation and group of a record."""
        stated = record.collective
        if stated is None:
            raise PerfgridError("the record describes no collective")
        columns: dict[str, Any] = {"device": record.device, "topology": self._first("topology", record)}
        columns |= {"collective": stated.op, "message_size": stated.size, "group_size": stated.ranks, "group_stride": 1}
        columns |= {"devices": record.devices or stated.ranks}
        columns |= {"algorithm": NAMES.get(stated.algorithm or "best", stated.algorithm or "best")}
        columns |= self._machine(record, columns["topology"])
        for name, value in columns.items():
            if name in self.catalog.variables:
                convert(self.catalog.variables[name], value, f"field {name}")
        return columns

    def _first(self, table: str, record: Record, stated: list[str] | None = None) -> str:
        """The fabric of a record or its source; that of the device's nodes where neither states it."""
        own = data("conventions")["group"].get(record.group, {})
        families = [f for f in data("conventions")["device"] if record.device.startswith(f)]
        if record.topology is None and table not in own and families:
            return super()._first(table, record, data("conventions")["device"][max(families, key=len)][table])
        return super()._first(table, record, stated)
