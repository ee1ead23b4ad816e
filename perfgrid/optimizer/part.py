"""The designs of one workload of an optimisation, evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from perfgrid.engine.autodiff.dual import Dual
from perfgrid.engine.autodiff.function import FreeFunction, FreePlan, PointFunction, freed
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.study.limits import KEPT, Limit, unit_of_quantity
from perfgrid.study.samples import SAMPLE
from perfgrid.study.study import Study

from .knobs import Knobs
from .quantile import quantile

DESIGN = "design"  # axis of the designs that are evaluated whole at once
TOGETHER = 32  # designs on it


@dataclass
class Part:
    """One workload of an optimisation: its study with the knobs taken out, and what is read of it."""

    name: str
    study: Study
    weight: float
    objective: str
    limits: list[Limit]
    knobs: Knobs
    choose: Sequence[str]
    jointly: Sequence[str] = ()  # axes along which all workloads take the same label
    quantile: float | None = None  # over samples that all belong to each design
    together: int = TOGETHER

    def __post_init__(self) -> None:
        study = self.study
        space = freed(study.space, [q for q in self.knobs.quantities if q in study.space.names()])
        within = () if self.quantile is None else (SAMPLE,)
        self.chosen = tuple(a.name for a in space.axes if a.name in self.choose)
        known = (*self.chosen, *self.jointly, *within)
        # axes of which every label has an optimum of its own
        self.groups = tuple(a.name for a in space.axes if a.name not in known and len(a) > 1)
        self.space = Space((Axis(DESIGN, np.arange(self.together)), *space.axes), space.constants)
        self.numbers = tuple(dict.fromkeys((self.objective, *(x.quantity for x in self.limits), *study.outputs)))
        try:
            plan = FreePlan(
                study.registry, self.space, self.numbers, self.knobs.quantities, (DESIGN,), study.file.choices, True
            )
        except PerfgridError as error:
            raise PerfgridError(f"{study.name}: {error}") from error
        self.plan = plan
        self.free = [q for q in self.knobs.quantities if q in plan.graph.leaves]
        several = [n for n in self.numbers if plan.quantities[n].axes]
        if wrong := [n for n in several if n == self.objective or n in {x.quantity for x in self.limits}]:
            raise PerfgridError(f"{study.name}: {wrong[0]!r} has several values at one design; name a single number")
        if plan.quantities[self.objective].labelled:
            raise PerfgridError(
                f"{study.name}: {self.objective!r} is a choice or a flag and has no slope to follow; compare its labels"
            )
        self.numbers = tuple(n for n in self.numbers if n not in several)
        self.whole = FreeFunction(plan)
        self.held = plan.concerning(self.objective, *(x.quantity for x in self.limits))
        doubtful = {n: [c for c in plan.concerning(n) if c not in self.held] for n in self.numbers}
        self.doubtful = {n: [c for c in cs if _illegal(plan, c)] for n, cs in doubtful.items()}
        others = dict.fromkeys(c for constraints in self.doubtful.values() for c in constraints)
        self.single = PointFunction(self.whole, [*self.numbers, *others], self.held, *within)
        self._refuse_impossible()
        self._gathered: dict[bytes, dict[str, np.ndarray]] = {}

    def _refuse_impossible(self) -> None:
        """PerfgridError where limits and constraints that nothing free moves leave no design of any group."""
        fixed = self.whole.constants
        kept = {f"{self.reason(n)} [{n}]": self._flat(n, fixed[n])[:1] > 0 for n in self.held if n in fixed}
        for limit in self.limits:
            if limit.quantity in fixed:
                value = self._flat(limit.quantity, fixed[limit.quantity])[:1]
                ends = " to ".join(dict.fromkeys(f"{end:.4g}" for end in (value.min(), value.max())))
                text = f"{limit.text} (it is {ends} {unit_of_quantity(self.study, limit.quantity)})"
                kept[text] = np.asarray(limit.slack(limit.bound, value)) >= -KEPT
        if not np.any(reduce(np.logical_and, kept.values(), np.array(True))):
            always = "; ".join(text for text, holds in kept.items() if not holds.any())
            broken = always or "one of: " + "; ".join(text for text, holds in kept.items() if not holds.all())
            raise PerfgridError(f"{self.study.name}: whatever the free quantities are, every design breaks {broken}")

    def labelled(self, text: str) -> str:
        """A text about this workload with its name before it."""
        return f"{self.name}: {text}" if self.name else text

    def reason(self, flag: str) -> str:
        """Why a constraint forbids a design, in words."""
        constraint = self.plan.graph.nodes[flag].constraint
        return "" if constraint is None else constraint.reason

    def exact(self, values: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The objective and the limited quantities of all layouts, and how many of their constraints are broken.

        [designs, groups, layouts, samples] and [designs, groups, layouts]; ``values`` are those of the knobs'
        quantities, for a full batch of designs. A constraint is kept that holds in enough of the samples.
        """
        shape = tuple(self.together if a.name == DESIGN else 1 for a in self.plan.space.axes)
        free = {q: np.reshape(values[q], shape + self.plan.quantities[q].inner_shape) for q in self.free}
        with np.errstate(all="ignore"):
            found = self.whole(free)
        wanted = (self.objective, *(x.quantity for x in self.limits))
        enough = (1.0 if self.quantile is None else self.quantile) - 1e-9
        broken = sum((self._flat(name, found[name]).mean(axis=3) < enough for name in self.held), np.zeros((1, 1, 1)))
        return {name: self._flat(name, found[name]) for name in wanted}, broken

    def _flat(self, name: str, value: np.ndarray) -> np.ndarray:
        """A quantity as [designs, groups, layouts, samples]; of size 1 along samples where it does not vary."""
        names, value = [a.name for a in self.space.axes], self.whole.expanded(name, value)
        value = value.reshape(value.shape[: len(names)])
        inside = [] if self.quantile is None or SAMPLE not in names else [names.index(SAMPLE)]
        sizes = [value.shape[i] if i in inside else n for i, n in enumerate(self.space.shape)]
        order = [names.index(n) for n in (DESIGN, *self.groups, *self.jointly, *self.chosen)]
        rest = [i for i in range(len(names)) if i not in (*order, *inside)]
        count = prod(len(a) for a in self.space.axes if a.name in (*self.groups, *self.jointly))
        value = np.broadcast_to(value, sizes).transpose(*order, *rest, *inside)
        return value.reshape(self.together, count, -1, *([value.shape[-1]] if inside else [1])).astype(float)

    def rows(self, group: np.ndarray, layout: np.ndarray) -> np.ndarray:
        """Rows of every axis, in the order of the plan, of designs given by numbers of group and layout."""
        lengths = {a.name: len(a) for a in self.plan.space.axes}
        where = dict.fromkeys(lengths, np.zeros(len(group), int))
        for names, numbers in (((*self.groups, *self.jointly), group), (self.chosen, layout)):
            if names:
                where.update(zip(names, np.unravel_index(numbers, [lengths[n] for n in names]), strict=True))
        return np.stack([where[a.name] for a in self.plan.space.axes], axis=1)

    def at(
        self,
        values: Mapping[str, Any],
        group: np.ndarray,
        layout: np.ndarray,
        counts: Mapping[str, np.ndarray],
        temperature: float,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Numbers, margins and counts before rounding of one layout per design; see `PointFunction`.

        Numbers are [designs, samples], margins and counts [designs] those that enough samples keep.
        """
        free = {q: v if isinstance(v := values[q], Dual) else Dual(v, np.zeros((0, *np.shape(v)))) for q in self.free}
        numbers, margins, rounded = self.single(free, self.gathered(self.rows(group, layout)), counts, temperature)
        level, up = 1 - (self.quantile or 1.0), self.single.counts
        margins = {name: quantile(value, level, temperature > 0) for name, value in margins.items()}
        rounded = {n: quantile(v, 1 - level if up[n] else level, temperature > 0) for n, v in rounded.items()}
        return numbers, margins, rounded

    def gathered(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The constants of designs; kept while the same ones are asked for."""
        key = rows.tobytes()
        if key not in self._gathered:
            if len(self._gathered) > 64:
                self._gathered.clear()
            self._gathered[key] = self.single.gathered(rows)
        return self._gathered[key]


def _illegal(plan: FreePlan, constraint: str) -> bool:
    """Whether numbers mean nothing where a constraint is broken."""
    node = plan.graph.nodes[constraint]
    return node.constraint is not None and node.constraint.kind == "illegal"
