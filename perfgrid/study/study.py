"""A study: which designs to evaluate and what to know of them; from a TOML file, a mapping or keyword arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from perfgrid.catalog import Catalog, load_catalog
from perfgrid.catalog.naming import check_name
from perfgrid.catalog.reading import Malformed, check_extent, from_toml, read_text
from perfgrid.catalog.units import is_unit, number_or_text
from perfgrid.engine.errors import PerfgridError, mistake_text, nearest, shown
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.renamed import current
from perfgrid.formulas import registry_of

from .checks import check_masked, check_tables
from .content import Content
from .file import POOLS, Best, Optimize, Pareto, Pool, StudyFile, Workload
from .names import with_names
from .space import TABLES, SpaceBuilder
from .trace import trace_parameters
from .view import View
from .view_checks import check_views, fitting_views
from .where import apply_where

File = TypeVar("File", bound=StudyFile)


@dataclass(frozen=True)
class Study(Content):
    """A checked study: its design space, the formulas of its workload and the wanted outputs.

    `Study.make` and `load_study` make one.

    Examples
    --------
    >>> import perfgrid as pg
    >>> study = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["b200", "mi300x"]})
    >>> study.space.points, study.outputs
    (2, ('die_cost',))
    """

    @classmethod
    def make(
        cls,
        catalog: Catalog | str | Path | Sequence[str | Path] | None = None,
        formulas: Iterable[Callable[..., Any]] = (),
        **content: Any,
    ) -> Study:
        """A study from keyword arguments named like the keys of a study file.

        Parameters
        ----------
        catalog
            A loaded catalog, or catalog files to add to the built-in one.
        formulas
            The user's own formulas; they replace or join the built-in ones.
        **content
            The keys of a study file: outputs, axes, workload, workload_parameters, overrides, choices, where, ...

        Raises
        ------
        PerfgridError
            For anything wrong, in one line.
        """
        if catalog is not None and not isinstance(catalog, Catalog):
            catalog = load_catalog(*([catalog] if isinstance(catalog, str | Path) else catalog))
        return build_study(content, "study", catalog, formulas)


def load_study(
    path: str | Path,
    settings: Iterable[str] = (),
    catalog: Catalog | None = None,
    formulas: Iterable[Callable[..., Any]] = (),
) -> Study:
    """Read, check and expand a study file.

    Parameters
    ----------
    path
        The file (TOML).
    settings
        Overrides such as ``device.b200.hbm_bandwidth=10e12`` or ``axes.microbatch=[1, 2]``.
    catalog
        A loaded catalog. Default: the built-in one and the files of ``catalog`` in the study.
    formulas
        The user's own formulas; they replace or join the built-in ones.

    Returns
    -------
    Study
        The study.

    Raises
    ------
    PerfgridError
        For anything wrong, in one line: file, key, what was found, nearest legal names.

    Examples
    --------
    >>> import perfgrid as pg
    >>> pg.load_study("absent.toml")
    Traceback (most recent call last):
    ...
    perfgrid.engine.errors.PerfgridError: absent.toml: cannot be read: No such file or directory
    """
    settings = tuple(settings)
    content, text, values = content_of(path, settings)
    other_axes = any(setting.lstrip().startswith("axes.") for setting in settings)
    study = build_study(content, str(path), catalog, formulas, values, Path(path).parent, other_axes)
    return replace(study, source=text)


def content_of(path: str | Path, settings: Iterable[str] = ()) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """What a study file holds with the settings, its text, and the settings of catalog values."""
    text = read_text(Path(path))
    content = from_toml(text, f"{path}: ")
    values: dict[str, Any] = {}
    stated = set[str]()
    for setting in settings:
        key, parsed = setting_of(setting)
        if key.strip() in stated:
            raise PerfgridError(f"--set {key.strip()} stands twice: keep one of them")
        stated.add(key.strip())
        if key.split(".")[0] in TABLES:
            values[key.strip()] = parsed
            continue
        *folders, last = key.strip().split(".")
        if not key.strip() or "" in (*folders, last):
            raise PerfgridError(f"--set {setting!r} must name a key, such as device.b200.hbm_bandwidth=10e12")
        place = content
        for folder in folders:
            place = place.setdefault(folder, {})
            if not isinstance(place, dict):
                raise PerfgridError(f"--set {setting!r}: {folder!r} is not a table of {path}")
        place[last] = parsed
    return content, text, values


def setting_of(setting: str) -> tuple[str, Any]:
    """Key and value of ``key=value``; a value that is not TOML is taken as text. PerfgridError without a ``=``."""
    key, equals, value = setting.partition("=")
    if not equals:
        raise PerfgridError(f"--set {setting!r} must read key=value")
    try:
        return key, from_toml(f"value = {value}", f"--set {key}: ")["value"]
    except Malformed:
        value = value.strip()
    if value.startswith("[") and value.endswith("]"):  # words without quotes, of which one may have brackets
        words = [word.strip() for word in re.split(r",(?![^\[]*\])", value[1:-1])]
        return key, [found if isinstance(found := number_or_text(word), float) else word.strip("\"'") for word in words]
    return key, value


def build_study(
    content: Mapping[str, Any],
    name: str,
    catalog: Catalog | None = None,
    formulas: Iterable[Callable[..., Any]] = (),
    catalog_values: Mapping[str, Any] | None = None,
    folder: Path = Path(),
    other_axes: bool = False,
) -> Study:
    """Check the content of a study and expand its axes. ``name`` appears in errors.

    With ``other_axes`` than its views were written for, those that do not fit are left out.
    """
    file = checked_file(current(content, name), name)
    if isinstance(file, StudyFile):
        file = file if file.trace is None else _with_trace(file, folder, name)
        _check_lengths(file, name)
    if catalog is None:
        catalog = load_catalog(*(folder / p for p in file.catalog))
    if catalog_values:
        catalog = catalog.with_values(dict(catalog_values))
    file, catalog = with_names(file, catalog, name)
    registry = registry_of(file.workload)
    formulas = formulas if isinstance(formulas, tuple) else tuple(formulas)  # those of a file know their file
    computed = frozenset[str]()
    if formulas:
        registry = registry.extended(formulas)
        members = Registry.collect(formulas).formulas.values()
        computed = frozenset(n for member in members for n in (member.name, member.of) if n is not None)
        for member in members:
            if not is_unit(member.unit):
                raise PerfgridError(
                    f"formula {member.name!r}: unknown unit {member.unit!r}; units are SI, such as byte/s"
                )
    builder = SpaceBuilder(file, name, catalog, registry, computed)
    space = builder.space()
    if file.where:
        space, constraint = apply_where(space, file.where, f"{name}, where")
        if constraint is not None:
            registry = registry.extended(())
            registry.add(constraint)
    taken, notes = frozenset(builder.taken), tuple(dict.fromkeys(builder.notes))
    found = {"stated": taken, "implied": builder.implied, "defaults": builder.defaults, "notes": notes}
    found["settings"] = dict(catalog_values or {})
    study = Study(file, space, registry, catalog, name, formulas=formulas, tables=frozenset(builder.tables), **found)
    legal = (*registry.names(), *(f"{c}_choice" for c in registry.choices), *space.names())
    for output in file.outputs:
        if output not in legal and output not in {axis.name for axis in space.axes}:
            raise PerfgridError(f"{name}, outputs: unknown quantity {output!r}{nearest(output, legal)}")
    used = study.sources()
    for key in catalog_values or {}:
        table, entry, *_ = catalog.place_of(key)
        if entry not in used.get(table, ()):
            raise PerfgridError(
                f"{name}, --set {key}: the study uses no such {table}{nearest(entry, used.get(table, ()))}"
            )
    check_masked(study)
    check_tables(study, {key: one for key, (one, _) in workloads(study).items()})
    if other_axes:
        return replace(study, file=study.file.model_copy(update={"view": fitting_views(study)}))
    check_views(study)
    return study


def _stated(file: StudyFile) -> set[str]:
    """The quantities that axes, workload parameters and overrides state."""
    columns = {c for axis in file.axes.values() if isinstance(axis, dict) for c in axis.get("zip") or ()}
    return {*file.axes, *columns, *file.workload_parameters, *file.overrides}


def _check_lengths(file: StudyFile, name: str) -> None:
    """A distribution of lengths needs a variation. PerfgridError without one."""
    family = file.workload_parameters.get("length_distribution", "constant")
    if family != "constant" and not {"prompt_variation", "output_variation"} & _stated(file):
        raise PerfgridError(
            f"{name}, workload_parameters.length_distribution: {family!r} needs prompt_variation or output_variation"
        )


def _with_trace(file: StudyFile, folder: Path, name: str) -> StudyFile:
    """A study with what its trace says of requests. It may state the rate of arrivals itself, but not the lengths."""
    if file.workload != "inference":
        raise PerfgridError(f"{name}, trace: only studies of inference have requests, this is one of {file.workload}")
    stated, found = _stated(file), trace_parameters(folder / str(file.trace), f"{name}, trace")
    if twice := sorted(key for key in found if key in stated and key != "request_rate"):
        raise PerfgridError(f"{name}, trace: the trace states {twice[0]}, and so does the study; state it once")
    if "request_rate" in found:
        found["batch_rule"] = "rate"
    taken = {key: value for key, value in found.items() if key not in stated}
    return file.model_copy(update={"trace": None, "workload_parameters": taken | file.workload_parameters})


def checked_file(content: Mapping[str, Any], name: str, kind: type[File] = StudyFile) -> File:
    """What a study file holds, checked. ``name`` appears in errors."""
    check_extent(content, f"{name}: ")
    if kind is StudyFile and set(POOLS) & set(content):
        raise PerfgridError(f"{name}: [prefill] and [decode] are two pools: join_pools evaluates and joins them")
    try:
        return kind.model_validate(dict(content))
    except ValidationError as error:
        raise PerfgridError(f"{name}: {_message(error, kind)}") from None


def _message(error: ValidationError, kind: type[StudyFile]) -> str:
    """The first error of pydantic as one line with the nearest legal key; a wrong key before a missing one."""
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        tables = {"best": Best, "optimize": Optimize, "pareto": Pareto, "view": View, "workloads": Workload}
        tables |= dict.fromkeys(POOLS, Pool)
        legal = tables.get(str(first["loc"][0]), kind).model_fields
        return f"unknown key {key!r}{nearest(str(first['loc'][-1]), legal)}"
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    return f"{key}: {mistake_text(first)}, found {shown(first['input'])}"


def workloads(study: Study) -> dict[str, tuple[Study, float]]:
    """The workloads of an optimisation, by name: studies with their weights; the study itself where it lists none.

    Each of ``[[workloads]]`` states what differs from the study: workload, outputs, axes, workload_parameters, choices,
    overrides; and its name and weight (1). One of another kind (`workload`) states its parameters and choices anew. An
    empty list takes an axis or a parameter away. PerfgridError for anything else.
    """
    base = study.file.model_dump(exclude_none=True, exclude={"workloads", "optimize", "best", "pareto", "view"})
    found: dict[str, tuple[Study, float]] = {}
    for number, entry in enumerate(study.file.workloads, 1):
        place, name = f"{study.name}, workloads[{number}]", entry.name
        check_name(name, place)
        if name in found:
            raise PerfgridError(f"{place}: another workload has the name {name!r} too")
        stated = entry.model_dump(exclude_none=True, exclude={"name", "weight"})
        content = base | stated
        own = ("workload_parameters", "choices") if content["workload"] != study.file.workload else ()
        for key in ("axes", "workload_parameters", "choices", "overrides"):
            changed = {**({} if key in own else base[key]), **stated.get(key, {})}
            content[key] = {k: v for k, v in changed.items() if v != []}  # an empty list takes an axis away
        one = build_study(content, f"{study.name} ({name})", study.catalog, study.formulas)
        found[name] = (one, 1.0 if entry.weight is None else entry.weight)
    return found or {"": (study, 1.0)}


def expect_study(found: object, asked: str) -> None:
    """PerfgridError for anything but a study."""
    if not isinstance(found, Study):
        what = repr(found) if isinstance(found, str | Path) else type(found).__name__
        raise PerfgridError(f"{asked} needs a Study, found {what}; load_study(path) reads one from a file")
