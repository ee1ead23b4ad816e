"""The tables of a study that searches read: what they name exists, whichever command loads the study."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from perfgrid.catalog.schema import KINDS as TABLES
from perfgrid.engine.errors import PerfgridError, nearest, together
from perfgrid.engine.graph.resolver import check_choices, resolve
from perfgrid.formulas import IMPLEMENTED

from .content import Content
from .file import CLUSTER_SIZE, Best, Optimize, Pareto, chosen_along, ties_of
from .free import check_smooth, leaf
from .limits import ends, limits


def check_tables(study: Content, workloads: Mapping[str, Content]) -> None:
    """PerfgridError for a wrong name in ``[choices]``, ``[best]``, ``[pareto]`` and ``[optimize]`` of a study."""
    try:
        check_choices(study.registry, study.file.choices)
    except PerfgridError as error:
        raise PerfgridError(f"{study.name}, choices: {error}") from None
    for table, stated in (("best", study.file.best), ("pareto", study.file.pareto)):
        if stated is not None:
            _check_search(table, stated, study)
    if study.file.optimize is not None:
        _check_optimize(study, study.file.optimize, workloads)


def check_masked(study: Content) -> None:
    """PerfgridError for an override that states what the entries of an axis decide, which would be without effect."""
    of_devices = any("device" in (axis.name, *axis.columns) for axis in study.space.axes)  # else nothing is made again
    for axis in study.space.axes:
        held = [key for key in study.file.overrides if of_devices and key in IMPLEMENTED.get(axis.name, ())]
        held = held or _masking(study, axis.name, axis.columns)
        if held:
            raise PerfgridError(
                f"{study.name}, overrides.{held[0]}: axes.{axis.name} decides {held[0]!r}; state one of the two"
            )


def _masking(study: Content, axis: str, columns: Collection[str]) -> list[str]:
    """The overrides without which some output reads the entries of an axis, if none does."""
    if axis not in TABLES or not study.file.overrides:
        return []
    given, labels = study.space.names(), study.space.label_quantities()
    found = []
    try:
        if set(columns) & set(study.graph().leaves):
            return []
        for key in study.file.overrides:
            others = [name for name in given if name != key]
            leaves = resolve(study.registry, study.outputs, others, study.file.choices, labels).leaves
            found += [key] if set(columns) & set(leaves) else []
    except PerfgridError:  # what is missing is reported where the study is evaluated
        return []
    return found


def _check_search(table: str, stated: Best | Pareto, study: Content) -> None:
    """The axes, labels and objectives that ``[best]`` or ``[pareto]`` names exist."""
    names = [a.name for a in study.space.axes]
    over, _ = chosen_along(stated.over, CLUSTER_SIZE, names)
    for key, axes in (("over", over), ("at", stated.at)):
        for axis in axes:
            if axis not in names:
                raise PerfgridError(f"{study.name}, {table}.{key}: unknown axis {axis!r}{nearest(axis, names)}")
    if both := sorted(set(over) & set(stated.at)):
        raise PerfgridError(f"{study.name}, {table}: axis {both[0]!r} stands in over and in at")
    for axis, label in stated.at.items():
        try:
            study.space.axes[names.index(axis)].index(study.label(axis, label))
        except PerfgridError as error:
            raise PerfgridError(f"{study.name}, {table}.at: {error}") from None
    if isinstance(stated, Pareto):
        objectives = stated.maximize
        if len(set(objectives)) < len(objectives):
            raise PerfgridError(f"{study.name}, pareto.maximize: names {objectives[0]!r} twice")
    else:
        objectives = [name for name in (stated.minimize, stated.maximize) if name is not None]
        if stated.ties is not None and study.file.dtype != "float64":
            raise PerfgridError(f"{study.name}, best.ties: equal designs can be ordered in dtype = 'float64' alone")
        if stated.within is not None and not stated.ties:
            raise PerfgridError(f"{study.name}, best.within: states how near ties are; state best.ties, too")
        if isinstance(stated.ties, list) and stated.within is None:
            raise PerfgridError(f"{study.name}, best.ties: several quantities need best.within, such as 0.01")
        if len(objectives) != 1:
            raise PerfgridError(f"{study.name}, best: give either minimize or maximize")
    ties = ties_of(stated, objectives[0]).by if isinstance(stated, Best) else ()
    labels = {name for axis in study.space.axes for name in axis.shown}  # a result has them as coordinates
    for objective in (*objectives, *(name for name in ties if name not in labels)):
        if objective not in study.outputs:
            raise PerfgridError(
                f"{study.name}, {table}: {objective!r} is not among the outputs{nearest(objective, study.outputs)}"
            )


def _check_optimize(study: Content, stated: Optimize, workloads: Mapping[str, Content]) -> None:
    """The objective, the free quantities with their bounds, the limits and the axes of ``[optimize]`` exist."""
    place, variables = f"{study.name}, optimize", study.catalog.variables
    if stated.minimize is not None and stated.maximize is not None:
        raise PerfgridError(f"{place}: give either minimize or maximize")
    axes = {axis.name for one in workloads.values() for axis in one.space.axes}
    first = next(iter(workloads.values()))
    known = {q for one in workloads.values() for q in (*one.registry.names(), *one.space.names(), *variables)}
    objective = [name for name in (stated.minimize, stated.maximize) if name is not None]
    chosen = [stated.choose] if isinstance(stated.choose, str) else stated.choose or []
    for name in chosen:
        if name not in axes:
            raise PerfgridError(f"{place}: unknown axis {name!r}{nearest(name, axes)}")
    for one in workloads.values():
        check_numbers(one, objective, place)
    for name in stated.over:
        bounds = stated.over[name] if isinstance(stated.over, dict) else []
        quantity = name.replace("[", ".").partition(".")[0]
        if quantity not in known:
            raise PerfgridError(f"{place}.over: unknown quantity {name!r}{nearest(quantity, known)}")
        try:
            if quantity in first.space.names() or quantity not in variables:
                leaf(first, name)
            else:  # a search may add it to what the study states
                check_smooth(first, variables[quantity])
        except PerfgridError as error:
            raise PerfgridError(f"{place}.over: {str(error).removeprefix(f'{first.name}: ')}") from None
        if bounds:
            ends(variables[quantity], bounds, f"{place}.over.{name}")
    try:
        for limit in limits(workloads, stated.subject_to):
            check_numbers(workloads[limit.workload], [limit.quantity], f"limit {limit.text!r}")
    except PerfgridError as error:
        raise PerfgridError(f"{place}.subject_to: {error}") from None


def check_numbers(study: Content, quantities: Sequence[str], place: str) -> None:
    """PerfgridError for quantities that a study does not know, and for labels."""
    labels = study.space.label_quantities()
    if words := [q for q in quantities if q in labels]:
        near = nearest(words[0], study.outputs)
        raise PerfgridError(f"{place}: {words[0]!r} is a label ({', '.join(labels[words[0]])}), no number{near}")
    known = (*study.registry.names(), *study.space.names())
    if unknown := [q for q in quantities if q not in known]:
        raise PerfgridError(together(f"{place}: unknown quantity {q!r}{nearest(q, known)}" for q in unknown))
