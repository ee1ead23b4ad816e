"""A page for each file of formulas, with equation, units, source and code; lists of all quantities and references."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from perfgrid.catalog import load_catalog
from perfgrid.engine.graph.entries import Constraint, Formula
from perfgrid.formulas import WORKLOADS, registry_of

from .equations import code, equation
from .links import escaped, relative, table, trail

REFERENCES, QUANTITIES, GLOSSARY = "reference/references.md", "reference/quantities.md", "reference/glossary.md"


@cache
def entries() -> dict[str, tuple[Formula, tuple[str, ...]]]:
    """Every formula by its name, with the workloads that have it."""
    found: dict[str, tuple[Formula, tuple[str, ...]]] = {}
    for workload in WORKLOADS:
        registry = registry_of(workload)
        alternatives = [a for choice in registry.choices.values() for a in choice.alternatives]
        for entry in (*registry.formulas.values(), *alternatives):
            known, before = found.get(entry.name, (entry, ()))
            kept = entry if known.same_as is not None else known  # a synonym in one workload may be computed in another
            found[entry.name] = kept, tuple(dict.fromkeys((*before, workload)))
    return found


def page_of(entry: Formula) -> str:
    """The page that shows a formula."""
    parts = inspect.unwrap(entry.function).__module__.split(".")
    return "reference/formulas/" + "/".join(parts[2:]) + ".md"


@cache
def places() -> dict[str, str]:
    """Page and anchor of every quantity, computed and given."""
    known = {name: f"{GLOSSARY}#{name}" for name in load_catalog().variables}
    for name, (entry, _) in entries().items():
        if entry.same_as is None:
            known[name] = f"{page_of(entry)}#{name}"
            if entry.of:
                known.setdefault(entry.of, f"{page_of(entry)}#{name}")
    for name, (entry, _) in entries().items():
        if entry.same_as is not None:
            known[name] = known[_value_of(entry)]
    return known


def _value_of(entry: Formula) -> str:
    """The quantity whose value a synonym returns, through other synonyms."""
    while entry.same_as is not None and entry.same_as in entries():
        entry = entries()[entry.same_as][0]
    return entry.same_as or entry.name


def linked(name: str, page: str) -> str:
    """A quantity as a link to where it is explained."""
    place = places().get(name)
    return f"[`{name}`]({relative(place, page)})" if place else f"`{name}`"


def cited(key: str, page: str) -> str:
    """A source as a link to the bibliography."""
    known = key in load_catalog().references
    return f"[{key}]({relative(f'{REFERENCES}#{key}', page)})" if known else escaped(key)


def formula_pages() -> Iterator[tuple[str, str]]:
    """Path and text of the pages of formulas, a page for each file, and of the list of these pages."""
    files: dict[str, dict[str, list[tuple[Formula, tuple[str, ...]]]]] = {}
    for entry, workloads in entries().values():
        if entry.same_as is None:
            own = files.setdefault(page_of(entry), {})
            own.setdefault(inspect.unwrap(entry.function).__qualname__, []).append((entry, workloads))
    subjects: dict[str, list[list[str]]] = {}
    for page, functions in sorted(files.items()):
        first = next(iter(functions.values()))[0][0]
        module = sys.modules[inspect.unwrap(first.function).__module__]
        title = _title(page)
        yield (
            page,
            trail(page, ("Formulas", "reference/formulas/index.md"))
            + f"# {title}\n\n{_about(module)}\n\n"
            + "".join(_formula(own, page) for own in functions.values()),
        )
        subject = page.split("/")[2] if page.count("/") > 2 else "other"
        index = "reference/formulas/index.md"
        sentence = re.split(r"[.;]\s", _about(module))[0]
        line = [f"[{title}]({relative(page, index)})", escaped(sentence), str(len(functions))]
        subjects.setdefault(subject, []).append(line)
    text = "# Formulas by subject\n\nEach formula with its equation, unit, arguments, source and code.\n"
    for subject, rows in subjects.items():
        text += f"\n## {subject.capitalize()}\n\n" + table(["page", "about", "formulas"], rows)
    yield "reference/formulas/index.md", text


def _title(page: str) -> str:
    return page.rpartition("/")[2].removesuffix(".md").replace("_", " ").capitalize()


def _about(module: ModuleType) -> str:
    return inspect.cleandoc(module.__doc__ or "")


def _formula(members: list[tuple[Formula, tuple[str, ...]]], page: str) -> str:
    """The section of a function, which may be the formula of several parallel groups."""
    entry, workloads = members[0]
    function = inspect.unwrap(entry.function)
    kind = "Constraint" if isinstance(entry, Constraint) else "Formula"
    facts = [
        f"unit `{entry.unit}`",
        f"source {cited(entry.source, page)}" + (f", {entry.where}" if entry.where else ""),
    ]
    facts.append(f"workloads {', '.join(workloads)}")
    if entry.of:
        facts.append(f"alternative `{entry.label}` of `{entry.of}`")
    anchors = "".join(f'<a id="{other.name}"></a>' for other, _ in members if other.name != function.__name__)
    text = f"\n## {function.__name__} {{ #{function.__name__} }}\n\n{anchors}\n\n" if anchors else (
        f"\n## {function.__name__} {{ #{function.__name__} }}\n\n"
    )  # fmt: skip
    if len(members) > 1:
        text += f"One formula of {len(members)} quantities: " + ", ".join(f"`{other.name}`" for other, _ in members)
        text += ". What follows is said of the first.\n\n"
    elif entry.name != function.__name__:
        text += f"As a quantity: `{entry.name}`.\n\n"
    text += f"{kind}: {escaped(entry.meaning)}\n\n"
    if isinstance(entry, Constraint):
        text += f"A design that breaks it is infeasible (`{entry.kind}`): {escaped(entry.reason)}.\n\n"
    rest = inspect.cleandoc(function.__doc__ or "").splitlines()[1:]
    text += escaped(" ".join(line.strip() for line in rest)).strip() + "\n\n"
    if (shown := equation(entry.function)) is not None:
        text += f'<div class="equation">{shown}</div>\n\n'
    text += f"{' · '.join(facts)}\n\n"
    if entry.arguments:
        text += "Arguments: " + ", ".join(linked(name, page) for name in entry.arguments) + "\n\n"
    file = function.__module__.replace(".", "/") + ".py"
    line = inspect.getsourcelines(function)[1]
    code_block = "\n".join("    " + row for row in f"```python\n{code(function)}\n```".splitlines())
    return text + f'??? note "Code: {file}, line {line}"\n\n{code_block}\n\n'


def lists() -> Iterator[tuple[str, str]]:
    """The list of all computed quantities, and the bibliography."""
    rows = [
        [linked(name, QUANTITIES), escaped(entry.unit), escaped(entry.meaning)]
        for name, (entry, _) in sorted(entries().items())
    ]
    head = f"# Computed quantities\n\nAll {len(rows)} formulas by name. What files state: [glossary](glossary.md).\n\n"
    yield QUANTITIES, head + table(["quantity", "unit", "meaning"], rows)
    cites: dict[str, list[str]] = {}
    for entry, _ in entries().values():
        cites.setdefault(entry.source, []).append(entry.name)
    text = "# References\n\nSources of formulas and catalog.\n\n"
    for key, citation in sorted(load_catalog().references.items()):
        users = list(dict.fromkeys(cites.get(key, ())))
        named = (
            f"\n\n:   Formulas: {', '.join(linked(n, REFERENCES) for n in users[:12])}" if users else "\n\n:   Catalog"
        )
        named += f" and {len(users) - 12} more" if len(users) > 12 else ""
        text += f'<a id="{key}"></a>**{key}** {escaped(_with_address(citation))}{named}\n\n'
    yield REFERENCES, text


def _with_address(citation: str) -> str:
    """A citation with its DOI, preprint or address as a link."""
    *words, last = citation.rsplit(", ", 1)
    for prefix, address in (("doi:", "https://doi.org/"), ("arXiv:", "https://arxiv.org/abs/"), ("http", "http")):
        if last.startswith(prefix):
            return f"{words[0] if words else ''}, [{last}]({address}{last.removeprefix(prefix)})"
    return citation


def glossary() -> Iterator[tuple[str, str]]:
    """The list of what files and studies state, by table."""
    variables = load_catalog().variables
    by_table: dict[str, list[list[str]]] = {}
    for name, variable in variables.items():
        bounds = (("≥", variable.minimum), ("≤", variable.maximum), (">", variable.above))
        limits = [f"{sign} {value:g}" for sign, value in bounds if value is not None]
        words = ", ".join(f"`{c}`" for c in variable.codes)
        kind = words or variable.kind + (f" along `{variable.axis}`" if variable.axis else "")
        default = "" if variable.default is None else f"`{variable.default}`"
        cells = [f'<a id="{name}"></a>`{name}`', escaped(variable.unit), escaped(variable.meaning), kind]
        by_table.setdefault(variable.of, []).append([*cells, escaped(", ".join(limits)), escaped(default)])
    text = "# Glossary\n\nOne name for each quantity that a catalog entry or a study states; "
    text += "[computed quantities](quantities.md) have formulas.\n"
    for kind, rows in by_table.items():
        text += f"\n## {kind} {{ #of-{kind} }}\n\n"
        text += table(["quantity", "unit", "meaning", "kind", "bounds", "default"], rows)
    yield GLOSSARY, text
