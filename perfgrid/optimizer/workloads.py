"""The workloads of one optimisation: what each of ``[[workloads]]`` changes in the study."""

from __future__ import annotations

import re

import numpy as np

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.study.study import Study, build_study


def workloads(study: Study) -> dict[str, tuple[Study, float]]:
    """The workloads of an optimisation, by name: studies with their weights; the study itself where it lists none.

    Each of ``[[workloads]]`` states what differs from the study: workload, outputs, axes, workload_parameters, choices,
    overrides; and its name and weight (1). One of another kind (`workload`) states its parameters and choices anew. An
    empty list takes an axis or a parameter away. PerfgridError for anything else.
    """
    entries = study.file.workloads
    if not entries:
        return {"": (study, 1.0)}
    base = study.file.model_dump(exclude_none=True, exclude={"workloads", "optimize", "best", "pareto"})
    merged = ("axes", "workload_parameters", "choices", "overrides")
    legal = ("name", "weight", "workload", "outputs", "where", *merged)
    found: dict[str, tuple[Study, float]] = {}
    for number, entry in enumerate(entries, 1):
        place = f"{study.name}, workloads[{number}]"
        for key in entry:
            if key not in legal:
                raise PerfgridError(f"{place}: unknown key {key!r}{nearest(key, legal)}")
        name, weight = entry.get("name"), entry.get("weight", 1.0)
        if not isinstance(name, str) or not re.fullmatch(r"[\w\-]+", name) or name in found:
            raise PerfgridError(f"{place}: needs a name of its own, of letters and digits, found {name!r}")
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < np.inf:
            raise PerfgridError(f"{place}: the weight must be a number of at least zero, found {weight!r}")
        content = {**base, **{k: v for k, v in entry.items() if k not in ("name", "weight", *merged)}}
        own = ("workload_parameters", "choices") if content.get("workload") != base.get("workload") else ()
        for key in merged:
            changed = {**({} if key in own else base.get(key, {})), **entry.get(key, {})}
            content[key] = {k: v for k, v in changed.items() if v != []}  # an empty list takes an axis away
        found[name] = (build_study(content, f"{study.name} ({name})", study.catalog, study.formulas), float(weight))
    return found
