"""Settings of a format on their way to quantities of perfgrid; each key is understood, assumed or ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perfgrid.catalog.schema import convert
from perfgrid.engine.errors import PerfgridError, nearest, printable, shortened

from .formats import (
    USUAL,
    Case,
    Format,
    Key,
    conditions_in,
    glossary,
    holds,
    reason_to_ignore,
    reason_to_stop,
    solved,
)
from .job import UNKNOWN
from .lists import LISTS
from .settings import Settings

_DEFAULT = "not stated: the default of {title}"
NO_WORDS = {"null", "None", "", "true", "True", "false", "False"}  # of a list
BY_DEVICES = ("devices", "global_batch")  # their products divide the devices between degrees
TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
SILENT = (*FALSE, "", "auto", "none", "null")  # values of a key that do not switch it on


class Reader:
    """The settings of a job, on their way to quantities."""

    def __init__(self, form: Format, version: str, settings: Settings):
        self.form, self.version = form, version
        self.found: dict[str, Any] = {}
        self.left: set[str] = set()  # quantities that a key leaves to what follows, such as -1
        self.origins: dict[str, str] = {}  # quantity -> the key that states it
        self.understood: list[tuple[str, str, str]] = []
        self.unexpressed: list[tuple[list[str], tuple[str, str, str]]] = []  # keys of a quantity that is a default
        self.assumed: list[tuple[str, str, str]] = []
        self.ignored = [(key if " " in key else form.shown(key), value, why) for key, value, why in settings.unread]
        self.unread = {
            form.shown(form.name_of(key)): (settings.words.get(key, ""), why) for key, _, why in settings.unread
        }
        self.settings, self.files = self._named(settings)
        cases = {key for case in form.cases for key in (*case.keys, *case.contains)}
        for key, value in self.settings.items():
            if value is not None and (why := reason_to_stop(form, key, text_of(value))):
                raise PerfgridError(
                    f"{self.files[key]}: {form.shown(key)} {text_of(value)} is not modelled: {why}; "
                    "without this key the rest is read"
                )
            if key in form.keys:
                self._take(key, form.keys[key], value)
            elif key not in cases:
                why = reason_to_ignore(form, key) or self._unknown(key)
                self.ignored.append((form.shown(key), text_of(value), why))

    def _named(self, settings: Settings) -> tuple[dict[str, Any], dict[str, str]]:
        """Settings by today's names of their keys; those of another version are noted."""
        values, files = {}, {}
        for key, value in settings.values.items():
            name = self.form.name_of(key)
            if renamed := self.form.renamed.get(key):
                name = renamed.to
                why = f"renamed to {self.form.shown(name)} in {renamed.version}: read as that"
                self.assumed.append((self.form.shown(key), text_of(value), why))
            rows = [self.form.keys[name]] if name in self.form.keys else self.form.stating(name)
            if rows and not any(self.form.has(row, self.version) for row in rows):
                having = next(v for v in reversed(self.form.versions) if any(self.form.has(row, v) for row in rows))
                span = f"since {rows[0].since}" if rows[0].since else f"until {rows[0].until}"
                raise PerfgridError(
                    f"{settings.files[key]}: {self.form.title} {self.version} has no {self.form.shown(key)} "
                    f"({span}): state the version, as in --format {self.form.name}@{having}"
                )
            if name in values and text_of(values[name]) != text_of(value) and value is not None:
                raise PerfgridError(
                    f"{settings.files[key]}: {self.form.shown(key)} {text_of(value)} contradicts "
                    f"{self.form.shown(name)} {text_of(values[name])}: they are one key"
                )
            values[name], files[name] = value, settings.files[key]
        return values, files

    def _unknown(self, key: str) -> str:
        near = nearest(key, [*self.form.keys, *(k for case in self.form.cases for k in case.keys)])
        return f"{UNKNOWN} to perfgrid for {self.form.title}{near}"

    def _take(self, key: str, row: Key, value: Any) -> None:
        """Take in the value of a key that states one quantity."""
        text = text_of(value)
        if row.empty is not None and text in row.unset:
            text = value = str(row.empty)
        elif text in row.unset or value is None:
            self.left.add(row.quantity)
            self.understood.append((self.form.shown(key), text, f"{row.quantity} is not stated"))
            return
        where, note = f"{self.files[key]}: {self.form.shown(key)}", row.note
        if row.kind in LISTS:
            found, note = LISTS[row.kind](text, where)
        else:
            found = _converted(row, value, where)
        if row.quantity in self.found and self.found[row.quantity] != found:
            first = self.origins[row.quantity]
            raise PerfgridError(
                f"{self.files[key]}: {self.form.shown(key)} {text} contradicts {first}: both state {row.quantity}"
            )
        self.found[row.quantity], self.origins[row.quantity] = found, self.form.shown(key)
        self.understood.append((self.form.shown(key), text, f"{row.quantity} = {text_of(found)}"))
        if note:
            self.assumed.append((self.form.shown(key), text, note))

    def state(self, given: Mapping[str, Any], where: str) -> None:
        """Take in what the user states, and what several keys state together."""
        for name, value in given.items():
            if name not in glossary():
                raise PerfgridError(f"no quantity {name!r}{nearest(name, glossary())}")
            value = _plain(convert(glossary()[name], value, name), name)
            if self.found.setdefault(name, value) != value:
                raise PerfgridError(
                    f"{where}{name} is {self.found[name]} by {self.origins[name]}, not {text_of(value)}"
                )
        for quantity in dict.fromkeys(case.quantity for case in self.form.cases):
            if quantity not in self.found:
                self._decide(quantity)

    def values(self, where: str) -> dict[str, Any]:
        """All quantities: those stated, those that follow, defaults."""
        told = {shown for shown, *_ in self.understood}
        self.ignored += [row for keys, row in self.unexpressed if not {self.form.shown(key) for key in keys} <= told]
        named = {shown for text, *_ in (*self.understood, *self.ignored) for shown in text.split()}
        for case in self.form.cases:
            for key in (*case.keys, *case.contains):
                if key in self.settings and self.form.shown(key) not in named:
                    named.add(self.form.shown(key))
                    silent = text_of(self.settings[key]).lower() in SILENT
                    why = "states nothing" if silent else "without effect beside the other keys, or not expressed"
                    why = reason_to_ignore(self.form, key) or f"{why} ({case.quantity})"
                    self.ignored.append((self.form.shown(key), text_of(self.settings[key]), why))
        known: dict[str, set[str]] = {}
        for case in self.form.cases:
            for key, word in case.contains.items():
                known.setdefault(key, set()).add(word)
        for key in known.keys() & self.settings.keys():
            if beyond := sorted(words_of(self.settings[key]) - known[key] - NO_WORDS):
                self.ignored.append((f"{self.form.shown(key)} {' '.join(beyond)}", "", "not modelled"))
        values, defaults = dict(self.form.implied) | self.found, self.form.defaults
        degrees = {n: defaults[n] for n in self.form.degrees if n not in self.left}
        unread = self._unread_degrees(values)
        degrees = {n: value for n, value in degrees.items() if n not in unread}
        values = self._defaulted(values, degrees, where, BY_DEVICES)  # whatever the number of devices
        if unread:
            known = solved(self.form, values, where, self.origins)
            self._check_read({n: key for n, key in unread.items() if known.get(n) is None}, where)
            rows = ((n, text_of(known[n]), f"{key} is not read: follows from the others") for n, key in unread.items())
            self.assumed += sorted(rows)
        values = self._fallen_back(self._defaulted(values, defaults, where), where)
        for row in self.form.needed:
            if values.get(row.quantity) is None and holds(conditions_in(row.when), values):
                raise PerfgridError(f"{where}states no {row.quantity}, {row.why}: give --set {row.quantity}=...")
        return self._listed(values)

    def _fallen_back(self, values: dict[str, Any], where: str) -> dict[str, Any]:
        """Values with the fallbacks of what is not stated, in their order, which are listed as assumed."""
        for row in self.form.fallbacks:
            value = values.get(row.of) if row.of else row.value
            if value is None or values.get(row.quantity) is not None or not holds(conditions_in(row.when), values):
                continue
            values = solved(self.form, values | {row.quantity: value}, where, self.origins)
            if row.quantity in glossary():
                why = row.why or f"not stated: the default of {self.form.title}"
                self.assumed.append((row.quantity, text_of(value), why))
        return values

    def _unread_degrees(self, values: Mapping[str, Any]) -> dict[str, str]:
        """The degrees and batches whose keys are stated with words that are not read, with these keys."""
        products = self.form.equations()
        layout = {*BY_DEVICES, "ep"}
        while more := {n for p in products if p.left in layout for n in p.right if not n.isdigit()} - layout:
            layout |= more
        layout -= {"devices", "nodes", "devices_per_node"}  # --devices states them
        keys = ((row.quantity, self.form.shown(key)) for key, row in self.form.keys.items())
        return {n: key for n, key in keys if n in layout and key in self.unread and values.get(n) is None}

    def _check_read(self, unread: Mapping[str, str], where: str) -> None:
        """PerfgridError that names a key whose word is not read, and how to state its value."""
        for name, key in sorted(unread.items()):
            found, why = self.unread[key]
            file, colon, word = found.partition(": ")
            told = f"give --set {name}=..." if name in glossary() else f"write its number, such as {key} 8"
            raise PerfgridError(f"{file + colon or where}{key} {word}".rstrip() + f" is not read: {why}: {told}")

    def _defaulted(
        self, values: dict[str, Any], defaults: Mapping[str, Any], where: str, without: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Values with those that follow, and with defaults of what does not, which are listed as assumed."""
        values = solved(self.form, values, where, self.origins, without=without)
        for name, default in defaults.items():
            if values.get(name) is not None:
                continue
            value = values.get(default) if isinstance(default, str) and default in values else default
            if value is None or value == USUAL:
                continue
            values = solved(self.form, values | {name: value}, where, self.origins, without=without)
            if name in glossary() and (glossary()[name].of != "model" or "hidden_size" in self.found):
                keys = [self.form.shown(key) for key, row in self.form.keys.items() if row.quantity == name]
                why = f"no {' or '.join(keys)}" if keys else "not stated"
                why = next((f"{key} is not read" for key in keys if key in self.unread), why)
                self.assumed.append((name, text_of(value), f"{why}: the default of {self.form.title}"))
        return values

    def _listed(self, values: dict[str, Any]) -> dict[str, Any]:
        """The same values; listed are the optional quantities that nothing states."""
        for name in dict.fromkeys(case.quantity for case in self.form.cases):
            known = glossary().get(name)
            if values.get(name) is None and known and known.optional and known.of != "software":
                keys = dict.fromkeys(k for case in self.form.cases if case.quantity == name for k in case.keys)
                default = text_of(glossary()[name].word(glossary()[name].default_value))
                self.assumed.append((name, default, f"no {' or '.join(keys)}: the default of perfgrid"))
        for name in self.form.open:  # what the program states in its code, recomputation say
            if values.get(name) is None and name in glossary() and glossary()[name].optional:
                default = text_of(glossary()[name].word(glossary()[name].default_value))
                self.assumed.append((name, default, f"{self.form.title} does not state it: the default of perfgrid"))
        return values

    def _decide(self, quantity: str) -> None:
        """The value of a quantity that several keys state: that of the first case which they satisfy."""
        cases = [case for case in self.form.cases if case.quantity == quantity]
        cases = [case for case in cases if case.read and self.form.has(case, self.version)]
        for case in cases:
            if not self._satisfied(case):
                continue
            stated = [key for key in (*case.keys, *case.contains) if key in self.settings]
            others = [key for c in cases for key in list(c.keys)[:1] if key in self.settings and key not in stated]
            others = [key for key in dict.fromkeys(others) if text_of(self.settings[key]).lower() not in SILENT]
            self.found[quantity] = case.value
            for key in stated:
                self.origins.setdefault(quantity, self.form.shown(key))
                self._understand(key, quantity, case.value)
            if case.note:
                words = " ".join(f"{self.form.shown(key)} {text_of(self.settings[key])}" for key in stated)
                self.assumed.append((words or quantity, "" if words else text_of(case.value), case.note))
            if not stated and others:
                text = " ".join(f"{self.form.shown(key)} {text_of(self.settings[key])}" for key in others)
                why = f"this value or combination is not expressed; {quantity} = {text_of(case.value)} is taken"
                self.unexpressed.append((others, (text, "", why)))
            elif not stated and quantity in glossary() and not case.note:
                self.assumed.append((quantity, text_of(case.value), _DEFAULT.format(title=self.form.title)))
            return

    def _understand(self, key: str, quantity: str, value: Any) -> None:
        meaning = f"{quantity} = {text_of(value)}"
        text = text_of(self.settings[key])
        for i, (shown, _, before) in enumerate(self.understood):
            if shown == self.form.shown(key):
                self.understood[i] = (shown, text, f"{before}, {meaning}")
                return
        self.understood.append((self.form.shown(key), text, meaning))

    def _satisfied(self, case: Case) -> bool:
        for key, wanted in case.keys.items():
            value = self.settings.get(key)
            if isinstance(wanted, bool):
                if (value is not None and text_of(value).lower() not in SILENT) != wanted:
                    return False
            elif value is None or text_of(value) not in map(text_of, wanted if isinstance(wanted, list) else [wanted]):
                return False
        return all(word in words_of(self.settings.get(key)) for key, word in case.contains.items())


def words_of(value: Any) -> set[str]:
    """The words of a list as any syntax states it."""
    return set(re.split(r"[\s,\[\]'\"]+", "" if value is None else str(value)))


def _converted(row: Key, value: Any, where: str) -> Any:
    """The value of a key in perfgrid's form. PerfgridError for what it may not hold."""
    text = text_of(value)
    variable = glossary().get(row.quantity)
    kind = row.kind or (variable.kind if variable else "integer")
    if kind == "switch":
        return (text.lower() not in FALSE) != row.inverted
    if kind == "flag":
        if text.lower() not in (*TRUE, *FALSE):
            raise PerfgridError(f"{where} needs true or false, found {text!r:.60}")
        return (text.lower() in TRUE) != row.inverted
    if kind in ("text", "label", "code"):
        if row.words and text not in row.words and variable is not None:
            raise PerfgridError(f"{where} needs one of {', '.join(row.words)}, found {text!r:.60}")
        return row.words.get(text, text)
    if row.words and text not in row.words:
        raise PerfgridError(f"{where} needs one of {', '.join(row.words)}, found {text!r:.60}")
    text = row.words.get(text, text)
    try:
        number = float(text.split()[0] if text.split() else text)
    except ValueError:
        raise PerfgridError(f"{where} needs a number, found {text!r:.60}") from None
    if variable is not None and variable.kind in ("integer", "number"):
        return _plain(convert(variable, number, where), row.quantity)
    if kind == "integer" and (number != int(number) if abs(number) < 1e18 else True):
        raise PerfgridError(f"{where} needs a whole number, found {text!r:.60}")
    return int(number) if kind == "integer" else number


def check_experts(values: Mapping[str, Any], where: str) -> None:
    """PerfgridError where the experts' ranks do not divide those of a stage."""
    if "ep" not in values or "etp" not in values:
        return
    ranks = values.get("tp", 1) * values.get("cp", 1) * values.get("dp", 1)
    if ranks % (values["ep"] * values["etp"]):
        raise PerfgridError(
            f"{where}ep {values['ep']} x etp {values['etp']} does not divide the {ranks} ranks tp x cp x dp of a stage"
        )


def text_of(value: Any) -> str:
    """A value of a setting as one short line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return shortened(printable(str(value)), 200)


def _plain(value: Any, name: str) -> Any:
    variable = glossary()[name]
    value = variable.word(value)
    return int(value) if variable.kind == "integer" and isinstance(value, float) else value
