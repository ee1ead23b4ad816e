"""How many designs are infeasible, and why."""

from __future__ import annotations

from perfgrid.printing.console import out
from perfgrid.results.feasibility import Feasibility


def print_violations(found: Feasibility, seconds: float) -> None:
    """Points, infeasible ones, and the constraints that they violate."""
    points = found.points
    out.print(
        f"{points:,} points in {seconds:.1f} s; {found.infeasible:,} infeasible ({found.infeasible / points:.1%})"
        + (f", {found.partly:,} more for some outputs only ({found.partly / points:.1%})" if found.partly else "")
    )
    width = max((len(f"{violation.points:,}") for violation in found.violations), default=0)
    for violation in found.violations:
        only = f", of {', '.join(violation.outputs)} only" if violation.outputs else ""
        counted = f"  {violation.points:>{width},} ({violation.points / points:>5.1%})  "
        out.print(f"{counted}{violation.reason} [{violation.name}{only}]", indent=" " * len(counted))
