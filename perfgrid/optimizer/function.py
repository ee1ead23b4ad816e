"""Quantities of a study set free: outputs as a differentiable function of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from perfgrid.engine import xp
from perfgrid.engine.autodiff.function import FreeFunction, FreePlan, freed
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.formulas import INNER
from perfgrid.study.free import Leaf, leaves
from perfgrid.study.study import Study, expect_study


def stated(study: Study, name: str) -> np.ndarray | None:
    """What a study states of a quantity: a number or a vector; None where it varies along an axis of the study."""
    (axis, values), *_ = study.space.parts(name)
    if axis is not None and len(values) > 1 and np.ptp(values, axis=0).max() > 0:
        return None
    return np.asarray(values[0], dtype=np.float64)


class StudyFunction:
    """Outputs of a study as a pure function of free quantities: {name: value} -> {output: array}.

    Values are numbers in SI units (vectors of labels of an inner axis where a quantity has one and no component is
    named); arrays lie on ``dims[output]``, study axes first. Given JAX arrays it is plain JAX: `jax.jit`, `jax.grad`,
    `jax.vmap` apply, in double precision under ``jax.enable_x64``; given plain numbers it runs in NumPy and compiles
    nothing. ``start`` holds what the study states.
    """

    def __init__(self, study: Study, outputs: Sequence[str], over: Sequence[str]):
        self.leaves = leaves(study, dict.fromkeys(over))
        names = list(dict.fromkeys(item.quantity for item in self.leaves))
        self._base = {name: stated(study, name) for name in names}
        for item in self.leaves:
            base = self._base[item.quantity]
            if item.component is not None and base is None:
                raise PerfgridError(
                    f"{study.name}: {item.quantity!r} differs along an axis, so its component {item.name!r} alone "
                    "cannot be free; keep one entry on that axis"
                )
        space = freed(study.space, names)
        try:
            plan = FreePlan(study.registry, space, outputs, names, (), study.file.choices)
        except PerfgridError as error:
            raise PerfgridError(f"{study.name}: {error}") from error
        unread = [name for name in names if name not in plan.graph.leaves]
        if unread:
            raise PerfgridError(f"{study.name}: no requested output depends on {unread[0]!r}")
        self._function = FreeFunction(plan)
        self.outputs = tuple(plan.outputs)
        self.start = {item.name: self._start(item) for item in self.leaves}
        self.dims: dict[str, tuple[str, ...]] = {}
        for name in self.outputs:
            quantity = plan.quantities[name]
            axes = [a.name for a in space.axes if a.name in quantity.columns]
            inner = [n for n, size in zip(INNER.names, quantity.inner, strict=True) if size > 1]
            self.dims[name] = (*axes, *inner)
        self.coords = {a.name: a.labels for a in space.axes}

    def _start(self, item: Leaf) -> Any:
        base = self._base[item.quantity]
        if base is None:
            return None
        flat = np.ravel(base)
        if flat.size > 1 and item.component is None:
            return flat
        return float(flat[item.component or 0])

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs at values of the free quantities.

        PerfgridError for a missing or unknown name, and for plain numbers outside the bounds of the glossary (what is
        traced by JAX is not looked at).
        """
        known = [item.name for item in self.leaves]
        for name in values:
            if name not in known:
                raise PerfgridError(f"{name!r} is not free in this function{nearest(str(name), known)}")
        for name in known:
            if name not in values:
                raise PerfgridError(f"the free quantity {name!r} has no value; give one for each of {', '.join(known)}")
        plan = self._function.plan
        free: dict[str, Any] = {}
        for item in self.leaves:
            value = values[item.name]
            if not isinstance(value, jax.Array):
                value = np.asarray(value, dtype=np.float64)
                self._check(item, value)
            shape = plan.quantities[item.quantity].shape
            if item.component is not None:
                rest = free.get(item.quantity, xp.reshape(self._base[item.quantity], shape))
                here = np.arange(rest.size).reshape(shape) == item.component
                value = xp.where(here, value, rest)
            free[item.quantity] = xp.reshape(value, shape)
        with np.errstate(all="ignore"):
            found = self._function(free)
        return {name: self._shaped(name, found[name]) for name in self.outputs}

    def _check(self, item: Leaf, value: np.ndarray) -> None:
        """Raise PerfgridError where a value lies outside the bounds of its quantity."""
        variable = item.variable
        low = value >= variable.minimum if variable.minimum is not None else value > (variable.above or 0.0)
        high = variable.maximum is None or value <= variable.maximum
        if not np.all(low & high):
            raise PerfgridError(f"{item.name} must be {variable.bounds}, found {value.tolist()!r}")

    def _shaped(self, name: str, value: Any) -> Any:
        full = self._function.expanded(name, value)
        space, inner = self._function.plan.study_space, INNER.names
        sizes = [len(a) for a in space.axes if a.name in self.dims[name]]
        sizes += [INNER.size(n) for n in inner if n in self.dims[name]]
        return xp.reshape(full, tuple(sizes))


def function(study: Study, outputs: Sequence[str] | str | None = None, over: Sequence[str] | str = ()) -> StudyFunction:
    """Outputs of a study as a differentiable function of given quantities.

    What the study states of a free quantity is left out, and so is an axis of its name. The rest is evaluated once.

    Parameters
    ----------
    study
        The study.
    outputs
        Quantities. Default: the outputs of the study.
    over
        The free quantities; ``name.label`` is one component of a vector.

    Returns
    -------
    StudyFunction
        {name: value} -> {output: array}, in SI units. With JAX arrays it is plain JAX: `jax.jit`, `jax.grad` and
        `jax.vmap` apply. ``start`` holds what the study states, ``dims`` the axes of each output.

    Raises
    ------
    PerfgridError
        For an unknown name, a quantity that is not a smooth number, and one on which no output depends.

    Examples
    --------
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["h100-sxm-80gb"]})
    >>> cost = pg.function(bill, over="wafer_price")
    >>> round(cost({"wafer_price": 10000.0})["die_cost"].item())
    306
    """
    expect_study(study, "function")
    chosen = [outputs] if isinstance(outputs, str) else list(study.outputs if outputs is None else outputs)
    over = [over] if isinstance(over, str) else list(over)
    if not over:
        raise PerfgridError("name at least one quantity in over, such as over=['hbm_bandwidth']")
    legal = (*study.registry.names(), *study.space.names())
    for name in chosen:
        if name not in legal:
            raise PerfgridError(f"{study.name}: unknown quantity {name!r}{nearest(name, legal)}")
    return StudyFunction(study, chosen, over)
