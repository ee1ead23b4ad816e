"""Which of two statements about one thing counts: the device's or the fabric's.

A fabric may state the size of its domains and the rate of its links; otherwise it takes the device's own. Where a user
states a device's value (a single value, an entry of a file), that of a built-in fabric would hide it. The more specific
statement counts: what the study states for all designs, then what a user's file or setting states of the fabric, then
what one states of the device, then the fabric's entry, then the device's. ``over`` in the glossary names such pairs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfgrid.catalog import Catalog, Variable
from perfgrid.catalog.writing import value_text
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.space import Axis
from perfgrid.formulas import INNER


@dataclass
class Precedence:
    """Axes and constants of a study on their way to a space in which every stated value counts; notes say which."""

    catalog: Catalog
    axes: list[Axis]
    constants: dict[str, Any]
    taken: Collection[str]  # quantities that the study states for all designs
    defaults: Mapping[str, str]
    place: str
    notes: list[str]

    def settle(self) -> None:
        """Let yield what a more specific statement replaces. PerfgridError where two axes would have to decide."""
        for variable in self.catalog.variables.values():
            if variable.over:
                other, _, label = variable.over.partition(".")
                self._settle(variable, self.catalog.variables[other], label)

    def _settle(self, own: Variable, other: Variable, label: str) -> None:
        """Set what the fabric states to 0 (it takes the device's) where the device's value is stated."""
        everywhere = own.name in self.taken or any(own.name in axis.scales for axis in self.axes)
        if not (everywhere or self._rows("device", own.name).any()):
            return
        held = next((i for i, axis in enumerate(self.axes) if other.name in axis.columns), None)
        if held is None and other.name not in self.constants:
            return
        column = np.asarray(self.axes[held].columns[other.name] if held is not None else self.constants[other.name])
        column = column if held is not None else column[None]
        along, place = INNER.position(other.axis or ""), INNER.labels[other.axis or ""].index(label)
        states = np.moveaxis(column, along, -1)[..., place].reshape(-1) > 0
        if other.name in self.taken and states.any():
            self._both_stated(own, other, label, everywhere)
            return
        yields = np.ones(len(column), bool) if everywhere else ~self._rows("topology", other.name)
        yields = states & np.broadcast_to(yields, states.shape)
        devices, devices_axis = (np.array([True]), None) if everywhere else self._device_rows(own.name)
        self.notes += self._said(own, other, label, everywhere)
        if not yields.any():
            return
        if held is None and not devices.all():  # the one fabric of devices of which some state their own
            held, column = devices_axis, np.repeat(column, len(devices), axis=0)
            yields = np.repeat(yields, len(devices))
            self.constants.pop(other.name)
        if held == devices_axis and held is not None:
            yields = yields & devices
        elif not devices.all():
            raise PerfgridError(
                f"{self.place}: some devices state {own.name}, and topologies of another axis {other.name}.{label}: "
                "list devices and topologies together, in an axis with zip"
            )
        column = column.copy()
        np.moveaxis(column, along, -1)[yields, ..., place] = 0.0
        if held is None:
            self.constants[other.name] = column[0]
        else:
            axis = self.axes[held]
            self.axes[held] = replace(axis, columns={**axis.columns, other.name: column})

    def _both_stated(self, own: Variable, other: Variable, label: str, everywhere: bool) -> None:
        """What the study states of all fabrics counts before what anyone states of devices."""
        known = self.catalog.tables["device"]
        names = [n for n in dict.fromkeys(self._names("device")) if n in known and own.name in known[n].stated]
        of = "the study" if everywhere else ", ".join(names)
        self.notes.append(f"{other.name}.{label} of the study replaces {own.name} of {of}")

    def _names(self, table: str) -> Sequence[str]:
        """The entries of a table by row of the axis that has them, or the one of all designs."""
        held = self._holder(table)
        if held is not None:
            return list(map(str, self.axes[held].columns.get(table, self.axes[held].labels)))
        return [self.defaults[table]] if table in self.defaults else []

    def _holder(self, table: str) -> int | None:
        """The axis that has the entries of a table."""
        return next((i for i, axis in enumerate(self.axes) if axis.name == table or table in axis.columns), None)

    def _rows(self, table: str, quantity: str) -> np.ndarray:
        """Of which of these entries a user states a quantity."""
        known = self.catalog.tables[table]
        return np.array([n in known and quantity in known[n].stated for n in self._names(table)] or [False])

    def _device_rows(self, quantity: str) -> tuple[np.ndarray, int | None]:
        return self._rows("device", quantity), self._holder("device")

    def _said(self, own: Variable, other: Variable, label: str, everywhere: bool) -> Iterator[str]:
        """What to say of devices and fabrics that state different values."""
        devices, fabrics = self._names("device"), self._names("topology")
        paired = self._holder("device") is not None and self._holder("device") == self._holder("topology")
        pairs = zip(devices, fabrics, strict=True) if paired else ((d, f) for d in devices for f in fabrics)
        for device, fabric in dict.fromkeys(pairs):
            one, two = self.catalog.tables["device"].get(device), self.catalog.tables["topology"].get(fabric)
            if one is None or two is None or not (everywhere or own.name in one.stated):
                continue
            values = two.values[other.name]
            value = values[label] if isinstance(values, dict) else 0.0
            if not value or (not everywhere and value == one.values[own.name]):
                continue
            before = f"{own.name} of {'the study' if everywhere else device}"
            after = f"{other.name}.{label} {value_text(other, value)} of the topology {fabric}".replace('"', "")
            replaced = not everywhere and other.name in two.stated
            yield f"{after} replaces {before}" if replaced else f"{before} replaces {after}"
