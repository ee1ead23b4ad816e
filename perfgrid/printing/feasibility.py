"""How many designs are infeasible, and why."""

from __future__ import annotations

from collections import Counter

from perfgrid.printing.console import out
from perfgrid.results.feasibility import Feasibility
from perfgrid.study.study import Study
from perfgrid.text.numbers import count_text


def print_violations(found: Feasibility, seconds: float) -> None:
    """Points, infeasible ones, and the constraints that they violate."""
    points = found.points
    out.print(
        f"{count_text(points, 'point')} in {seconds:.1f} s; "
        f"{found.infeasible:,} infeasible ({found.infeasible / points:.1%})"
        + (f", {found.partly:,} more for some outputs only ({found.partly / points:.1%})" if found.partly else "")
    )
    width = max((len(f"{violation.points:,}") for violation in found.violations), default=0)
    for violation in found.violations:
        only = f", of {', '.join(violation.outputs)} only" if violation.outputs else ""
        counted = f"  {violation.points:>{width},} ({violation.points / points:>5.1%})  "
        out.print(f"{counted}{violation.reason} [{violation.name}{only}]", indent=" " * len(counted))


def print_impossible(study: Study) -> None:
    """Why designs of pools are impossible alone, by pool and reason."""
    for axis in study.space.axes:
        legal = axis.columns.get(f"{axis.name}_legal")
        if legal is None:
            continue
        why = [str(label).partition(" (")[2].removesuffix(")") for label in axis.labels[legal == 0]]
        for reason, count in Counter(why).most_common():
            out.print(f"  {count:,} of {count_text(len(axis), 'design')} of the {axis.name} pool: {reason}")
