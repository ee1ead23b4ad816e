"""The page of all reasons for which designs are infeasible."""

from __future__ import annotations

from perfgrid.engine.graph.entries import Constraint
from perfgrid.formulas import WORKLOADS, registry_of

from .formulas import linked
from .links import escaped, relative, table

CONSTRAINTS = "reference/constraints.md"
KINDS = {
    "exceeds": "The design breaks a limit; its values are what they would be.",
    "illegal": "The design cannot exist; its values mean nothing.",
}


def constraint_page() -> tuple[str, str]:
    """Path and text of the list: every constraint by kind, with its reason, workloads and formula."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for workload in WORKLOADS:
        for entry in registry_of(workload).formulas.values():
            if isinstance(entry, Constraint):
                found.setdefault((entry.kind, entry.name, entry.reason), []).append(workload)
    python = f"[Python]({relative('results.md', CONSTRAINTS)}#why-is-my-design-infeasible)"
    text = (
        f"# Why a design is infeasible: all {len(found)} reasons\n\n"
        "`train`, `serve` and `run` print the reasons of the designs that they exclude, with the constraint in "
        "brackets; `perfgrid explain STUDY QUANTITY --at ...` prints those of one design with the values on both "
        f"sides, and {python} counts them in a result. `perfgrid formulas --constraints --workload NAME` prints "
        "this list. A study's own conditions (`where`) and constraints come on top.\n"
    )
    for kind, meaning in KINDS.items():
        rows = [
            [linked(name, CONSTRAINTS), escaped(reason), ", ".join(workloads)]
            for (own, name, reason), workloads in found.items()
            if own == kind
        ]
        text += f"\n## {kind.capitalize()}\n\n{meaning}\n\n" + table(["constraint", "reason", "workloads"], rows)
    return CONSTRAINTS, text
