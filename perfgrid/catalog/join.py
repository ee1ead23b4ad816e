"""From definitions to entries: joined by ``extends``, converted to SI and checked, with the place of every mistake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from perfgrid.engine.errors import PerfgridError, nearest

from .files import Definition
from .schema import BLOCKS, CONFIDENCES, Detail, Entry, Kind, Value, Variable, convert

_DETAIL_KEYS = ("value", "source", "low", "high", "year", "confidence", "note", "calibration", "correlation")
NO_SOURCE = "none"  # stated by a user as a source: the values are attributed to the file
LONGEST_CHAIN = 32  # of entries that extend each other


@dataclass
class _Draft:
    """An entry while it is put together."""

    title: str | None
    source: str | None  # the entry's own or that of what it extends
    values: dict[str, Value]
    sources: dict[str, str]
    details: dict[str, Detail]
    stated: dict[str, str]  # by a user, with the file
    base: str = ""  # the entry that it extends


@dataclass(frozen=True)
class Join:
    """Puts the entries of one table together from their definitions."""

    kind: Kind
    all_variables: Mapping[str, Variable]
    references: Mapping[str, str]
    layers: list[Mapping[str, Definition]]

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """The variables of this table."""
        return {n: v for n, v in self.all_variables.items() if v.of == self.kind}

    def entry(self, name: str) -> Entry:
        """The finished entry of a name; PerfgridError names the file, the entry and the mistake."""
        draft = self._draft(name, len(self.layers) - 1, ())
        depth = max(i for i, layer in enumerate(self.layers) if name in layer)
        where = f"{Path(self.layers[depth][name].file).name}, [{name}]"
        self._complete(draft, where)
        if not draft.title:
            raise PerfgridError(f"{where} lacks a title")
        return Entry(name, self.kind, draft.title, draft.values, draft.sources, draft.details, draft.stated, draft.base)

    def _draft(self, name: str, depth: int, path: tuple[tuple[str, int], ...]) -> _Draft:
        """The entry as known up to a layer. An entry that extends its own name continues that of the layer before."""
        while name not in self.layers[depth]:
            depth -= 1
        definition = self.layers[depth][name]
        where = f"{Path(definition.file).name}, [{name}]"
        if (name, depth) in path:
            circle = " -> ".join([n for n, _ in path[path.index((name, depth)) :]] + [name])
            raise PerfgridError(f"{where} extends itself: {circle}")
        if len(path) > LONGEST_CHAIN:
            first, layer = path[0]
            file = Path(self.layers[layer][first].file).name
            raise PerfgridError(f"{file}, [{first}] extends a chain of more than {LONGEST_CHAIN} entries")
        draft = _Draft(None, None, {}, {}, {}, {})
        if (base := definition.stated.get("extends")) is not None:
            if not isinstance(base, str):
                raise PerfgridError(f"{where}: extends must name one {self.kind}, found {base!r}")
            below = depth - 1 if base == name else len(self.layers) - 1  # its own name continues the layer before
            known = {n for layer in self.layers[: below + 1] for n in layer}
            if base not in known:
                raise PerfgridError(f"{where}: extends names the unknown {self.kind} {base!r}{near(base, known)}")
            draft = self._draft(base, below, (*path, (name, depth)))
            draft.base = base
        self._state(draft, definition, where, depth > 0)
        return draft

    def _state(self, draft: _Draft, definition: Definition, where: str, own: bool) -> None:
        """Enter what one definition states over what it extends. ``own``: a user's definition.

        What a user's entry states without a source comes from the user's file, not from what the entry extends.
        """
        stated = _attributed(definition.stated, definition.file) if own else definition.stated
        for what in ("title", "source"):
            if what in stated:
                if not isinstance(stated[what], str) or not stated[what]:
                    raise PerfgridError(f"{where}: {what} must be text, found {stated[what]!r}")
                setattr(draft, what, stated[what])
        if draft.source is not None:
            self._check_source(draft.source, where)
        source = definition.file if own and draft.source is not None and "source" not in stated else draft.source
        for key, value in stated.items():
            if key in ("title", "source", "extends"):
                continue
            if key in BLOCKS and self.kind == "model":
                self._state_block(draft, key, value, where, source)
            else:
                self._state_value(draft, key, value, where, source)
            if own:
                names = value if key in BLOCKS and isinstance(value, Mapping) else (key,)
                draft.stated |= dict.fromkeys(map(str, names), definition.file)

    def _state_block(self, draft: _Draft, block: str, stated: Any, where: str, source: str | None) -> None:
        if not isinstance(stated, Mapping):
            raise PerfgridError(f"{where}: {block} must be a table, found {stated!r}")
        for key, value in stated.items():
            self._state_value(draft, key, value, where, source, block)
        for name, variable in self.variables.items():
            if variable.block == block and not variable.optional and name not in draft.values:
                raise PerfgridError(f"{where}: block {block} lacks {name} ({variable.meaning})")

    def _state_value(
        self, draft: _Draft, name: str, value: Any, where: str, source: str | None, block: str | None = None
    ) -> None:
        if isinstance(value, Mapping) and name not in self.all_variables:
            raise PerfgridError(
                f"{where}: unknown table {name!r}{nearest(name, (*BLOCKS, *self.variables))}; "
                f'an entry whose name holds a dot is written in quotes: ["{where.rpartition("[")[2][:-1]}.{name}"]'
            )
        variable = variable_of(self.all_variables, self.kind, name, where)
        if variable.block != block:
            place = f"in the block {variable.block}" if variable.block else "outside any block"
            raise PerfgridError(f"{where}: {name} belongs {place}")
        key = f"{where}.{name}" if block is None else f"{where}.{block}.{name}"
        about: Mapping[str, Any] = {}
        if isinstance(value, Mapping) and "value" in value:
            about, value = value, value["value"]
            for what in about:
                if what not in _DETAIL_KEYS:
                    raise PerfgridError(f"{key} has the unknown key {what!r}{nearest(what, _DETAIL_KEYS)}")
        if isinstance(value, Mapping) and isinstance(inherited := draft.values.get(name), dict):
            value = {**variable.word(inherited), **value}
        draft.values[name] = convert(variable, value, key)
        source = about.get("source", source)
        if not isinstance(source, str):
            raise PerfgridError(f"{key} has no source: add `source` to the entry or to the value")
        self._check_source(source, key)
        draft.sources[name] = source
        draft.details.pop(name, None)
        if detail := self._detail(variable, about, draft.values[name], key):
            draft.details[name] = detail

    def _check_source(self, source: str, where: str) -> None:
        if source not in self.references:
            raise PerfgridError(
                f"{where}: source {source!r} is not in the bibliography (references.bib and the .bib files given)"
                f"{nearest(source, self.references)}"
            )

    def _detail(self, variable: Variable, about: Mapping[str, Any], value: Value, key: str) -> Detail | None:
        range_ = {}
        for side in ("low", "high"):
            if side in about:
                if variable.axis or variable.kind in ("flag", "label", "code"):
                    raise PerfgridError(f"{key}.{side}: a range belongs to a single number")
                range_[side] = convert(variable, about[side], f"{key}.{side}")
        if isinstance(value, float) and not range_.get("low", value) <= value <= range_.get("high", value):
            raise PerfgridError(f"{key}: the value {value:g} lies outside its range {range_}")
        confidence, year, note = about.get("confidence"), about.get("year"), about.get("note")
        if confidence is not None and confidence not in CONFIDENCES:
            raise PerfgridError(f"{key}.confidence must be one of {', '.join(CONFIDENCES)}, found {confidence!r}")
        if year is not None and (isinstance(year, bool) or not isinstance(year, int)):
            raise PerfgridError(f"{key}.year must be a year, found {year!r}")
        calibration = about.get("calibration")
        for text, stated in (("note", note), ("calibration", calibration)):
            if stated is not None and not isinstance(stated, str):
                raise PerfgridError(f"{key}.{text} must be text, found {stated!r}")
        correlation = about.get("correlation", {})
        if not isinstance(correlation, Mapping):
            raise PerfgridError(f"{key}.correlation must be a table of other quantities, found {correlation!r}")
        for other, share in correlation.items():
            variable_of(self.all_variables, self.kind, other, f"{key}.correlation")
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not -1 < share < 1:
                raise PerfgridError(f"{key}.correlation.{other} must lie between -1 and 1, found {share!r}")
        correlation = {other: float(share) for other, share in correlation.items()}
        detail = Detail(range_.get("low"), range_.get("high"), year, confidence, note, calibration, correlation)
        return None if detail == Detail() else detail

    def _complete(self, draft: _Draft, where: str) -> None:
        """Fill in defaults; PerfgridError for what is required and absent."""
        lacking = []
        for name, variable in self.variables.items():
            if name in draft.values:
                continue
            if not variable.optional and variable.block is None:
                lacking.append(f"{name} ({variable.unit}: {variable.meaning})")
            elif (default := variable.default_value) is not None:
                draft.values[name] = default
                if draft.source is not None:  # the source says nothing of such a feature
                    draft.sources[name] = draft.source
        if lacking:
            raise PerfgridError(f"{where} lacks the required {'; '.join(lacking)}")


def without_source(file: str) -> str:
    """What stands in the place of a citation for values that a user's file states without a source."""
    return f"stated in {file} without a source"


def _attributed(stated: Mapping[str, Any], file: str) -> dict[str, Any]:
    """What a user's file states, with the file in the place of sources that are none."""
    return {
        key: _attributed(value, file)
        if isinstance(value, Mapping)
        else file
        if key == "source" and value == NO_SOURCE
        else value
        for key, value in stated.items()
    }


def variable_of(variables: Mapping[str, Variable], kind: str, name: str, where: str) -> Variable:
    """The variable of a table; PerfgridError with the nearest names, or the table that it belongs to."""
    found = variables.get(name)
    if found is None:
        legal = [n for n, v in variables.items() if v.of == kind]
        raise PerfgridError(f"{where}: unknown quantity {name!r}{nearest(name, legal)}")
    if found.of != kind:
        raise PerfgridError(f"{where}: {name!r} is stated by a {found.of}, not by a {kind}")
    return found


def near(name: str, legal: Iterable[str]) -> str:
    """The nearest legal names: those that contain the name first."""
    legal = sorted(legal)
    within = [n for n in legal if name and name.lower() in n.lower()][:3]
    if within:
        return "; did you mean " + " or ".join(repr(n) for n in within) + "?"
    return nearest(name, legal) or "; legal names: " + ", ".join(legal)
