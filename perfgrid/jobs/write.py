"""Writing a launch: a design as the configuration of a framework; reading it again gives the same design."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from perfgrid.catalog import Entry
from perfgrid.engine.errors import PerfgridError, printable

from .formats import USUAL, Case, Format, glossary, solved
from .models import own_quantities
from .settings import COMMENTED

NODE = 8  # devices of a node, where they are whole nodes
SCALED = {"fp8": "delayed", "fp4": "nvfp4"}  # what the usual scaling is (perfgrid.formulas.hardware.scaling)
MOE_ONLY = ("ep", "etp", "capacity_factor", "expert_imbalance")
SILENT = ("devices", "dp", "training_tokens", "flash_attention", "causal", "document_length", "document_variation")


@dataclass(frozen=True)
class Launch:
    """The text of a configuration, and what of the design it cannot express."""

    text: str
    notes: tuple[str, ...]


def write_launch(values: Mapping[str, Any], model: Entry, form: Format, version: str, title: str = "") -> Launch:
    """A design as a configuration of a framework.

    ``values``: quantities of the design by their names; what it leaves out has the glossary's default. PerfgridError
    for a format without a writer, and for one of another workload.
    """
    if form.writes is None:
        raise PerfgridError(f"{form.title} is read, not written; written are those with a launch command of their own")
    wanted = _complete(values, model, form)
    conflicts = set[str]()
    wanted = solved(form, wanted, conflicts=conflicts)
    settings, notes = _settings(wanted, form, version)
    notes += [f"{n} = {wanted[n]}" for n in sorted(conflicts & {*wanted} & {*glossary()})]
    heading = [f"{form.title} {version}: {title or model.title}", f"perfgrid format: {form.name}@{version}"]
    lines = [*heading, *(f"not expressed: {note}" for note in notes)]
    text = _text(form, wanted, settings)
    if form.writes in COMMENTED:
        text = "".join(f"# {printable(line)}\n" for line in lines) + text
    return Launch(text, tuple(notes))


def _complete(values: Mapping[str, Any], model: Entry, form: Format) -> dict[str, Any]:
    """All quantities of a design: those of its model, those that follow, those of the format."""
    known = own_quantities(model) | dict(values)
    for name, value in form.implied.items():
        known.setdefault(name, value)
    if known.get("scaling", USUAL) == USUAL and known.get("precision") in SCALED:
        known["scaling"] = SCALED[str(known["precision"])]
    for name in ("dp_overlap", "parameter_overlap"):
        known.setdefault(name, USUAL)
    devices = int(known.get("devices", 1))
    known.setdefault("devices_per_node", NODE if devices % NODE == 0 else devices if devices < NODE else 1)
    if known["rotary"]:
        known["positions"] = known.get("sequence_length")
    if not known["experts"]:
        known = {n: v for n, v in known.items() if n not in MOE_ONLY}
    return {n: v for n, v in known.items() if v is not None}


def _settings(values: Mapping[str, Any], form: Format, version: str) -> tuple[dict[str, Any], list[str]]:
    """The keys that state a design, with their values, and what no key states."""
    settings: dict[str, Any] = {}
    notes, stated = [], {*SILENT}
    for key, row in form.keys.items():
        value = values.get(row.quantity)
        if not row.write:
            continue
        if form.has(row, version) and value is not None:
            stated.add(row.quantity)
            if row.words:
                value = next((word for word, own in row.words.items() if own == value), None)
                if value is None:
                    stated.discard(row.quantity)
                    continue
                settings[key] = value
                continue
            if row.kind in ("switch", "flag") and row.inverted:
                value = not value
            if row.kind not in ("flag", "number") and not isinstance(value, str) and value <= row.above:
                continue
            settings[key] = value
    for quantity in dict.fromkeys(case.quantity for case in form.cases):
        if values.get(quantity) is None:
            continue
        case = _case(form, version, quantity, values[quantity])
        if case is None:
            continue
        stated.add(quantity)
        for key, wanted in case.keys.items():
            if wanted is not False:
                settings.setdefault(key, wanted[0] if isinstance(wanted, list) else wanted)
    settings |= {key: value for key, value in form.fixed.items() if key not in settings}
    for name, value in values.items():
        known = glossary().get(name)
        if name == form.named and name not in stated:
            notes.append(f"the model {value}: {form.title} has no configuration of this name")
        if name in stated or known is None or known.of == "model" or value == USUAL:
            continue
        neutral = form.implied.get(name, form.defaults.get(name, known.default_value))
        if value not in (neutral, known.word(known.default_value) if known.default_value is not None else None):
            notes.append(f"{name} = {value}")
    return settings, notes


def _case(form: Format, version: str, quantity: str, value: Any) -> Case | None:
    cases = (case for case in form.cases if case.quantity == quantity and case.write and form.has(case, version))
    return next(
        (case for case in cases if case.value == value and isinstance(case.value, bool) == isinstance(value, bool)),
        None,
    )


def _text(form: Format, values: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Settings in the syntax of a format."""
    known = {name: _word(value) for name, value in values.items()}
    command = form.command.format_map(known) if form.command else ""
    if form.writes == "flags":
        ordered = sorted(settings.items(), key=lambda item: item[0].endswith(":"))  # sub-commands end the line
        return " \\\n    ".join([command, *(_flag(form, key, value) for key, value in ordered)]) + "\n"
    if form.writes == "pairs":
        return " \\\n    ".join([command, *(f"{k}={shlex.quote(_word(v))}" for k, v in settings.items())]) + "\n"
    if form.writes == "variables":
        return "".join(f"export {key}={shlex.quote(_word(value))}\n" for key, value in settings.items())
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *tables, last = key.split(".")
        holder = nested
        for table in tables:
            holder = holder.setdefault(table, {})
        holder[last] = value
    if form.writes == "json":
        return json.dumps(nested, indent=2) + "\n"
    if form.writes == "toml":
        return tomli_w.dumps(nested)
    import yaml

    return yaml.safe_dump(nested, sort_keys=False)


def _flag(form: Format, key: str, value: Any) -> str:
    """A flag of a command line."""
    if key.endswith(":"):
        return f"{key}{_word(value)}"
    return f"{form.prefix}{key}" if value is True else f"{form.prefix}{key} {shlex.quote(_word(value))}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) else str(value)
