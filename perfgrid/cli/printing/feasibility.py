"""How many designs are infeasible, and why."""

from __future__ import annotations

from perfgrid.results.feasibility import Feasibility

from .console import out


def print_violations(found: Feasibility, seconds: float) -> None:
    """Points, infeasible ones, and the constraints that they violate."""
    points = found.points
    out.print(
        f"{points:,} points in {seconds:.1f} s; {found.infeasible:,} infeasible ({found.infeasible / points:.1%})"
        + (f", {found.partly:,} more for some outputs only ({found.partly / points:.1%})" if found.partly else "")
    )
    for violation in found.violations:
        only = f", of {', '.join(violation.outputs)} only" if violation.outputs else ""
        share = violation.points / points
        out.print(f"  {violation.points:>13,} ({share:.1%})  {violation.reason} [{violation.name}{only}]")
