"""A page for each file of formulas, with equation, units, source and code; lists of all quantities and references."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby
from types import ModuleType
from typing import Any

from perfgrid.catalog import load_catalog
from perfgrid.engine.graph.entries import Constraint, Formula
from perfgrid.formulas import WORKLOADS, registry_of

from .equations import code, drawn, equation, written
from .links import escaped, relative, table, trail

REFERENCES, QUANTITIES, GLOSSARY = "reference/references.md", "reference/quantities.md", "reference/glossary.md"
LONG_TITLE = 60  # letters
ROWS = "perfgrid.formulas.axes"  # where functions are made that read the rows of a quantity


def is_plain(entry: Formula) -> bool:
    """Whether a formula is a number, another quantity or a row of one, without a function of its own."""
    module = inspect.unwrap(entry.function).__module__
    return entry.same_as is None and (not module.startswith("perfgrid.formulas") or module == ROWS)


@cache
def plain_alternatives() -> dict[str, dict[str, Formula]]:
    """These alternatives by the first computed alternative of the same quantity, which shows them, and by name."""
    first: dict[str, str] = {}
    for name, (entry, _) in entries().items():
        if entry.same_as is None:
            first.setdefault(entry.of or name, name)
    found: dict[str, dict[str, Formula]] = {}
    for workload in WORKLOADS:
        registry = registry_of(workload)
        alternatives = [a for choice in registry.choices.values() for a in choice.alternatives]
        for entry in filter(is_plain, (*registry.formulas.values(), *alternatives)):
            if (entry.of or entry.name) in first:
                found.setdefault(first[entry.of or entry.name], {})[entry.name] = entry
    return found


@cache
def tabulated() -> dict[str, dict[str, dict[str, Formula]]]:
    """Constants, and quantities whose alternatives all are rows of a table: by page, quantity and name."""
    computed = {entry.of or name for name, (entry, _) in entries().items() if entry.same_as is None}
    found: dict[str, dict[str, dict[str, Formula]]] = {}
    for workload in WORKLOADS:
        registry = registry_of(workload)
        for name, entry in registry.formulas.items():
            of = entry.of or name
            if is_plain(entry) and of not in computed:
                found.setdefault(_page_of_module(registry.modules[name]), {}).setdefault(of, {})[name] = entry
    return found


@cache
def entries() -> dict[str, tuple[Formula, tuple[str, ...]]]:
    """Every formula with a function by its name, with the workloads that have it."""
    found: dict[str, tuple[Formula, tuple[str, ...]]] = {}
    for workload in WORKLOADS:
        registry = registry_of(workload)
        alternatives = [a for choice in registry.choices.values() for a in choice.alternatives]
        for entry in (*registry.formulas.values(), *alternatives):
            if is_plain(entry):
                continue
            known, before = found.get(entry.name, (entry, ()))
            kept = entry if known.same_as is not None else known  # a synonym in one workload may be computed in another
            found[entry.name] = kept, tuple(dict.fromkeys((*before, workload)))
    return found


def page_of(entry: Formula) -> str:
    """The page that shows a formula."""
    return _page_of_module(inspect.unwrap(entry.function).__module__)


def _page_of_module(module: str) -> str:
    return "reference/formulas/" + "/".join(module.split(".")[2:]) + ".md"


@cache
def places() -> dict[str, str]:
    """Page and anchor of every quantity, computed and given."""
    known = {name: f"{GLOSSARY}#{name}" for name in load_catalog().variables}
    for name, (entry, _) in entries().items():
        if entry.same_as is None:
            known[name] = f"{page_of(entry)}#{name}"
            if entry.of:
                known.setdefault(entry.of, f"{page_of(entry)}#{name}")
    for page, quantities in tabulated().items():
        known |= {name: f"{page}#{of}" for of, members in quantities.items() for name in (of, *members)}
    for shown, others in plain_alternatives().items():
        known |= {name: f"{page_of(entries()[shown][0])}#{name}" for name in others}
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


@cache
def helpers() -> dict[str, dict[str, Callable[..., Any]]]:
    """Functions that formulas call, by page and name: equations on their own, which are no quantities."""
    bound = {written(entry.function) for entry, _ in entries().values()}
    left, found = list(bound), dict[str, dict[str, Callable[..., Any]]]()
    while left:
        for name, function in called(left.pop()):
            page = _page_of_module(function.__module__)
            if function not in bound and name not in found.setdefault(page, {}):
                found[page][name] = function
                left.append(function)
    return found


def called(function: Callable[..., Any]) -> list[tuple[str, Callable[..., Any]]]:
    """The functions of the physics that a function calls by their names, in order."""
    names = re.findall(r"\b([a-z]\w*)\b", code(function))
    known = {name: inspect.unwrap(of) for name in names if inspect.isfunction(of := function.__globals__.get(name))}
    return [
        (n, of)
        for n, of in known.items()
        if of.__module__.startswith("perfgrid.formulas") and of is not written(function)
    ]


def formula_pages() -> Iterator[tuple[str, str]]:
    """Path and text of the pages of formulas, a page for each file, and of the list of these pages."""
    files: dict[str, dict[str, list[tuple[Formula, tuple[str, ...]]]]] = {}
    for entry, workloads in entries().values():
        if entry.same_as is None:
            own = files.setdefault(page_of(entry), {})
            own.setdefault(written(entry.function).__name__, []).append((entry, workloads))
    subjects: dict[str, list[list[str]]] = {}
    for page in sorted({*files, *helpers(), *tabulated()}):
        functions, own = files.get(page, {}), helpers().get(page, {})
        module = sys.modules["perfgrid.formulas." + page.removeprefix("reference/formulas/")[:-3].replace("/", ".")]
        title = _title(module)
        file = module.__name__.replace(".", "/") + ".py"
        text = trail(page, ("Formulas", "reference/formulas/index.md")) + f"# {title}\n\n{_about(module)}\n\n"
        text += f"File `{file}`.\n\n" + "".join(_formula(members, page) for members in functions.values())
        text += "".join(_table(of, members, page) for of, members in tabulated().get(page, {}).items())
        if own:
            text += "\n## Functions of these formulas\n" + "".join(_helper(f, page) for f in own.values())
        yield page, text
        subject = page.split("/")[2] if page.count("/") > 2 else "other"
        index = "reference/formulas/index.md"
        sentence = re.split(r"[.;]\s", inspect.cleandoc(module.__doc__ or "").replace("\n", " "))[0]
        line = [f"[`{page.rpartition('/')[2].removesuffix('.md')}`]({relative(page, index)})", escaped(sentence)]
        line.append(str(len(functions)))
        subjects.setdefault(subject, []).append(line)
    text = "# Formulas by subject\n\nEach formula with its equation, unit, arguments, source and code.\n"
    for subject, rows in subjects.items():
        text += f"\n## {subject.capitalize()}\n\n" + table(["page", "about", "formulas"], rows)
    yield "reference/formulas/index.md", text


def _table(of: str, members: dict[str, Formula], page: str) -> str:
    """The section of a constant, a row of a quantity, or a quantity that labels decide."""
    first = next(iter(members.values()))
    meaning = first.meaning.rpartition("; ")[0] if first.of else first.meaning
    anchors = "".join(f'<a id="{name}"></a>' for name in members if name != of)
    text = f"\n## {of} {{ #{of} }}\n\n{anchors}\n\n" if anchors else f"\n## {of} {{ #{of} }}\n\n"
    text += f"{escaped(meaning)}\n\nunit `{first.unit}` · source {cited(first.source, page)}\n\n"
    if first.of is None:
        return text + f"{_value(first, page)}\n\n"
    return text + table([f"`{first.by}`", "value"], [[f"`{e.label}`", _value(e, page)] for e in members.values()])


def _value(entry: Formula, page: str) -> str:
    """A number, the quantity whose value it is, or that of which it is a row."""
    if not entry.arguments:
        return f"{entry.function():g}"
    labels = inspect.getclosurevars(entry.function).nonlocals.get("labels", {})
    row = "".join(f", {axis} = {label}" for axis, label in labels.items())
    return linked(entry.arguments[0], page) + row


def _title(module: ModuleType) -> str:
    """The subject of a file: what its first sentence begins with."""
    sentence = re.split(r"[.:;](?:\s|$)", inspect.cleandoc(module.__doc__ or ""))[0].replace("\n", " ")
    return sentence if len(sentence) < LONG_TITLE else sentence.partition(",")[0]


def _about(module: ModuleType) -> str:
    """What a file says of itself, its equations drawn."""
    text = inspect.cleandoc(module.__doc__ or "")
    return re.sub(r"\.\. math::\s*(.+)", lambda found: f'<div class="equation">{drawn(found[1])}</div>', text)


def _helper(function: Callable[..., Any], page: str) -> str:
    """The section of a function that formulas call."""
    name = function.__name__
    text = f"\n### {name} {{ #{name} }}\n\n{escaped(' '.join(inspect.cleandoc(function.__doc__ or '').split()))}\n\n"
    return text + _body(function, page)


def _body(function: Callable[..., Any], page: str) -> str:
    """The equation of a function, the functions that it calls, and its code."""
    shown = equation(function)
    text = f'<div class="equation">{shown}</div>\n\n' if shown is not None else ""
    calls = [f"[`{n}`]({relative(f'{_page_of_module(of.__module__)}#{n}', page)})" for n, of in called(function)]
    if calls:
        text += f"Calls: {', '.join(calls)}\n\n"
    function = written(function)
    file, line = function.__module__.replace(".", "/") + ".py", inspect.getsourcelines(function)[1]
    block = "\n".join("    " + row for row in f"```python\n{code(function)}\n```".splitlines())
    return text + f'??? note "Code: {file}, line {line}"\n\n{block}\n\n'


def _formula(members: list[tuple[Formula, tuple[str, ...]]], page: str) -> str:
    """The section of a function, which may be the formula of several parallel groups."""
    entry, workloads = members[0]
    function = written(entry.function)
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
    lines = inspect.cleandoc(function.__doc__ or "").splitlines()
    meaning = entry.meaning  # of a family that of all its members
    if len(members) > 1:
        meaning = lines[0]
        if function is inspect.unwrap(entry.function):
            text += "The same formula for " + ", ".join(f"`{other.name}`" for other, _ in members) + ".\n\n"
        else:
            text += table(["made by it", "meaning"], [[f"`{e.name}`", escaped(e.meaning)] for e, _ in members]) + "\n\n"
    elif entry.name != function.__name__:
        text += f"As a quantity: `{entry.name}`.\n\n"
    text += f"{kind}: {escaped(meaning)}\n\n"
    if isinstance(entry, Constraint):
        text += f"A design that breaks it is infeasible (`{entry.kind}`): {escaped(entry.reason)}.\n\n"
    if rest := " ".join(line.strip() for line in lines[1:]).strip():
        text += escaped(rest) + "\n\n"
    text += f"{' · '.join(facts)}\n\n"
    if entry.arguments:
        text += "Arguments: " + ", ".join(linked(name, page) for name in entry.arguments) + "\n\n"
    others = {name: other for member, _ in members for name, other in plain_alternatives().get(member.name, {}).items()}
    for name, other in others.items():
        text += f'<a id="{name}"></a>Alternative `{other.label}`: {_value(other, page)}\n\n'
    return text + _body(entry.function, page)


def lists() -> Iterator[tuple[str, str]]:
    """The list of all computed quantities, and the bibliography."""
    rows = {name: (entry.unit, escaped(entry.meaning)) for name, (entry, _) in entries().items()}
    for members in (members for quantities in tabulated().values() for members in quantities.values()):
        rows |= {name: (entry.unit, escaped(entry.meaning)) for name, entry in members.items()}
    chosen: dict[str, list[str]] = {}
    for name, (entry, _) in entries().items():
        if entry.of:
            chosen.setdefault(entry.of, []).append(name)
    for quantities in tabulated().values():
        chosen |= {of: list(members) for of, members in quantities.items() if of not in members}
    for name, among in chosen.items():
        rows[name] = rows[among[0]][0], "one of " + ", ".join(linked(other, QUANTITIES) for other in among)
    text = f"# Computed quantities\n\nAll {len(rows)} by name. What files state: [glossary](glossary.md).\n"
    for letter, names in groupby(sorted(rows), key=lambda name: name[0]):
        listed = [[linked(name, QUANTITIES), escaped(rows[name][0]), rows[name][1]] for name in names]
        text += f"\n## {letter.upper()}\n\n" + table(["quantity", "unit", "meaning"], listed)
    yield QUANTITIES, text
    cites: dict[str, list[str]] = {}
    plain = (e for quantities in tabulated().values() for members in quantities.values() for e in members.values())
    for entry in (*(entry for entry, _ in entries().values()), *plain):
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
