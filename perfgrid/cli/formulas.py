"""``perfgrid formulas``: the formulas or the constraints of a workload, as a table, JSON or graph."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Argument, Option

from perfgrid.analysis.nomenclature import explained
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.registry import Constraint
from perfgrid.formulas import WORKLOADS, registry_of
from perfgrid.printing.console import out, print_json, print_line
from perfgrid.printing.tables import print_table
from perfgrid.study.own_formulas import own_formulas
from perfgrid.text.numbers import bare_unit

from .options import AsJson, Formulas, Wide, one_of


def formulas_command(
    names: Annotated[
        list[str] | None, Argument(help="Words of a screen or quantities to explain, such as MFU. Default: list all.")
    ] = None,
    graph: Annotated[bool, Option("--graph", help="Print the dependency graph in Graphviz DOT.")] = False,
    workload: Annotated[
        str, Option(help="Workload whose formulas to list.", callback=one_of("--workload", WORKLOADS))
    ] = "training",
    constraints: Annotated[
        bool,
        Option("--constraints", help="List only the constraints, with kind and reason: why designs are infeasible."),
    ] = False,
    formulas: Formulas = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """List every formula: quantity, unit, arguments, source; or explain words of a screen, such as MFU."""
    if graph and as_json:
        raise PerfgridError("--graph prints Graphviz DOT and --json JSON: give one of them")
    if names:
        if graph or constraints or formulas:
            raise PerfgridError("words are explained one by one: give them without --graph, --constraints, --formulas")
        _explain(names, as_json)
        return
    own = own_formulas(formulas)
    registries = {name: registry_of(name).extended(own) for name in WORKLOADS}
    registry = registries[workload]
    rows = [
        {
            "quantity": f.name,
            "kind": f"constraint ({f.kind})" if isinstance(f, Constraint) else "formula",
            "reason": f.reason if isinstance(f, Constraint) else "",
            "of": f.of or "",
            "unit": f.unit,
            "arguments": list(f.arguments),
            "source": f.source,
            "meaning": f.meaning,
            "workloads": [name for name, held in registries.items() if f.name in held.formulas],
        }
        for f in registry.formulas.values()
        if isinstance(f, Constraint) or not constraints
    ]
    if graph:
        print_line("digraph perfgrid {", whole=True)
        print_line("  rankdir=LR;", whole=True)
        for row in rows:
            for argument in row["arguments"]:
                print_line(f'  "{argument}" -> "{row["quantity"]}";', whole=True)
            if row["of"]:
                print_line(f'  "{row["quantity"]}" -> "{row["of"]}" [style=dashed];', whole=True)
        print_line("}", whole=True)
    elif as_json:
        print_json(rows)
    elif constraints:
        lines = [[r["quantity"], r["kind"].removeprefix("constraint ").strip("()"), r["reason"]] for r in rows]
        print_table(["constraint", "kind", "reason"], lines, prose=("reason",))
        out.print("illegal: the design cannot exist, its values mean nothing; exceeds: it breaks a limit")
    else:
        lines = [
            [r["quantity"], bare_unit(r["unit"]), r["meaning"], r["source"], ", ".join(r["arguments"])] for r in rows
        ]
        drop = ("arguments", "source", "unit")
        print_table(["quantity", "unit", "meaning", "source", "arguments"], lines, drop=drop, prose=("meaning",))
        out.print(f"{len(rows)} formulas, {len(registry.choices)} quantities with alternatives")


def _explain(names: list[str], as_json: bool) -> None:
    """What words of a screen mean, and the quantities behind them."""
    every = {name: explained(name) for name in names}
    if as_json:
        data = [
            {"name": name, "word": asdict(word) if word else None, "quantities": [asdict(one) for one in known]}
            for name, (word, known) in every.items()
        ]
        print_json(data)
        return
    for word, known in every.values():
        if word is not None:
            unit = "" if word.unit in ("", "1") or known else f" [{word.unit}]"
            cited = f" ({word.source})" if word.source and not known else ""
            out.print(f"{word.name}{unit}: {word.text}{cited}")
        for one in known:
            of = f", {one.workload}" if one.workload else ""
            arguments = f"; of {', '.join(one.arguments)}" if one.arguments else ""
            out.print(f"{one.name} [{bare_unit(one.unit) or '1'}{of}]: {one.meaning} ({one.source}){arguments}")
    out.print("All words: docs/nomenclature.md")
