"""The keys of a job one by one: each states a quantity, is listed as without effect, or stops the reading."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perfgrid.engine.errors import PerfgridError, nearest

from .arguments import hyphenated
from .formats import Format, Key, glossary
from .job import UNKNOWN
from .kinds import NOT_MODELLED, UNMODELLED, program_keys
from .lists import LISTS
from .settings import Settings
from .stops import Stop
from .subjects import OFF, could_change
from .words import FALSE, NO_WORDS, UNSET, converted, equal, in_list, plainly, text_of, words_of

AS_STACK = f"{NOT_MODELLED}: perfgrid takes what its software stack does"
MOST_LOOKED_UP = 100


class Stated:
    """The settings of a job by the quantities that single keys state."""

    def __init__(self, form: Format, version: str, settings: Settings, leave_out: Iterable[str] = ()):
        self.form, self.version = form, version
        self.left_out = {plainly(key) for key in leave_out}  # keys whose unknown part the user leaves out
        self.stops: list[Stop] = []
        self.looked_up = 0
        self.unsure: set[str] = set()  # quantities of which a word is not read
        self.open: list[str] = []  # quantities that nothing states and a prediction needs
        self.found: dict[str, Any] = {}
        self.undecided: dict[str, str] = {}  # what a recipe of a name states itself -> why a default stands for it
        self.left: set[str] = set()  # quantities that a key leaves to what follows, such as -1
        self.origins: dict[str, str] = {}  # quantity -> the key that states it
        self.understood: list[tuple[str, str, str]] = []
        self.unexpressed: list[tuple[list[str], tuple[str, str, str]]] = []  # keys of a quantity that is a default
        self.assumed: list[tuple[str, str, str]] = []
        self.ignored = [(key if " " in key else form.shown(key), value, why) for key, value, why in settings.unread]
        self.unread = {
            form.shown(form.name_of(key)): (settings.words.get(key, ""), why) for key, _, why in settings.unread
        }
        self.settings_devices = settings.devices
        self.settings, self.files = self._named(settings)
        self._check_words(settings)
        cases = {key for case in form.cases for key in (*case.keys, *case.contains)}
        for key, value in self.settings.items():
            row = form.unpriced_row(key, text_of(value))
            if row is not None and row.values:
                self._leave(key, value)
            elif key in form.keys:
                self._take(key, form.keys[key], value)
            elif key not in cases:
                self._leave(key, value)
            else:
                self._check_known(key, value)

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
            again = name in values and files[name] == settings.files[key] and value is not None
            if again and text_of(values[name]) != text_of(value):
                raise PerfgridError(
                    f"{settings.files[key]}: {self.form.shown(key)} {text_of(value)} contradicts "
                    f"{self.form.shown(name)} {text_of(values[name])}: they are one key"
                )
            values[name], files[name] = value, settings.files[key]
        return values, files

    def _leave(self, key: str, value: Any) -> None:
        """List a key that states no quantity; stop at one that could matter."""
        shown, text = self.form.shown(key), text_of(value)
        row, why = self.form.unpriced_row(key, text), self.form.reason_to_ignore(key)
        if row is not None:
            off = not row.values and text.lower() in (*OFF, *UNSET, *(word.lower() for word in row.harmless))
            off = off or "*" in row.harmless
            why = f"{NOT_MODELLED}: {row.why}" + (": not in effect with this value" if off else "")
            if not off and self._stop(key, text, f"is {why}", row.quantity):
                return
        elif (usual := self.form.taken.get(key)) is not None:
            same = text.lower() in usual or (FALSE[0] in usual and text.lower() in OFF)
            why = AS_STACK if same else f"{UNMODELLED} change time or memory"
        elif why is None:
            why, near = f"{UNKNOWN} to perfgrid for {self.form.title}", self._near(key)
            if self.form.strict and (subject := could_change(key, text)):
                told = f"is {why} and could change {subject}{near}"
                if self._stop(key, text, told, how="state its effect with --set and "):
                    return
            why += near
        elif not self._of_program(key):
            told = f"{UNKNOWN} to perfgrid for {self.form.title}, though it begins like keys of the program"
            why = told + self._near(key)
        elif why.startswith(UNMODELLED) and text.lower() == "false":
            why = f"{NOT_MODELLED}: not in effect with this value"
        self.ignored.append((shown, text, why))

    def _of_program(self, key: str) -> bool:
        """Whether a key that is left out may be one of the program: where all are listed, a pattern stands for them."""
        if not self.form.complete or "." in key:
            return True
        plain = hyphenated(key).removeprefix("no-")
        return not {hyphenated(key), plain}.isdisjoint(program_keys(self.form.name) | self.form.ignored_names)

    def _check_known(self, key: str, value: Any) -> None:
        """Stop at a value of a key that no case has."""
        cases = [case for case in self.form.cases if key in case.keys or key in case.contains]
        if not self.form.strict or text_of(value).lower() in OFF:
            return
        if held := {case.contains[key] for case in cases if key in case.contains}:
            if beyond := sorted(words_of(value) - held - NO_WORDS):
                self._stop(key, " ".join(beyond), f"is {NOT_MODELLED}", cases[0].quantity)
            return
        words = [word for case in cases for word in in_list(case.keys[key])]
        if not any(equal(value, word) for word in words):
            known = ", ".join(dict.fromkeys(text_of(word) for word in words if word is not False))
            self._stop(key, text_of(value), f"is not understood (known: {known})", cases[0].quantity)

    def _check_words(self, settings: Settings) -> None:
        """Stop at words that are not read, of keys that several of state one quantity: no default stands for them."""
        for key, _, why in settings.unread if self.form.strict else ():
            name = self.form.name_of(key)
            quantities = [case.quantity for case in self.form.cases if name in case.keys or name in case.contains]
            if quantities:
                self.unsure |= {*quantities}
                told = next((quantity for quantity in quantities if quantity in glossary()), quantities[0])
                self._stop(name, settings.words.get(key, "").rpartition(": ")[2], f"is not read: {why}", told)

    def _stop(self, key: str, text: str, why: str, quantity: str = "", how: str = "") -> bool:
        """Remember why the job cannot be read as it stands; True where the user leaves the key out: it is listed."""
        shown = self.form.shown(key)
        if {plainly(key), plainly(shown)} & {*self.left_out}:
            unknown = why.removeprefix("is ")
            told = unknown if unknown.startswith(UNKNOWN) else f"{UNMODELLED} change the answer"
            self.ignored.append((shown, text, f"{told}: left out by --ignore"))
            return True
        told = f"give --set {quantity}=... or " if quantity in glossary() else how
        file = self.files.get(key, "")
        self.stops.append(Stop(f"{file}: " if file else "", shown, text, why, quantity, told))
        return False

    def _near(self, key: str) -> str:
        """The names nearest to an unknown key: of the first few, as this takes time."""
        self.looked_up += 1
        if self.looked_up > MOST_LOOKED_UP:
            return ""
        return nearest(key, [*self.form.keys, *(k for case in self.form.cases for k in case.keys)])

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
        if (entries := LISTS.get(row.kind or "")) is not None:
            found, note = entries(text, where)
        else:
            found = converted(row, value, where)
        if row.quantity in self.found and self.found[row.quantity] != found:
            first = self.origins[row.quantity]
            raise PerfgridError(
                f"{self.files[key]}: {self.form.shown(key)} {text} contradicts {first}: both state {row.quantity}"
            )
        self.found[row.quantity], self.origins[row.quantity] = found, self.form.shown(key)
        self.understood.append((self.form.shown(key), text, f"{row.quantity} = {text_of(found)}"))
        if note:
            self.assumed.append((self.form.shown(key), text, note))

    def _said(self, key: str) -> str:
        """A key with its value."""
        text = text_of(self.settings[key])
        return self.form.shown(key) if text.lower() == "true" else f"{self.form.shown(key)} {text}"

    def _key_of(self, name: str) -> str:
        """The key that states a quantity."""
        return next((self.form.shown(key) for key, row in self.form.keys.items() if row.quantity == name), name)

    def _named_by(self, quantity: str) -> str:
        """The key of the job that names a recipe or configuration which states a quantity; empty for none."""
        return next((k for k, names in self.form.leaves.items() if quantity in names and k in self.settings), "")

    def _understand(self, key: str, meaning: str) -> None:
        text = text_of(self.settings[key])
        for i, (shown, _, before) in enumerate(self.understood):
            if shown == self.form.shown(key):
                told = before if meaning in before.split(", ") else f"{before}, {meaning}"
                self.understood[i] = (shown, text, told)
                return
        self.understood.append((self.form.shown(key), text, meaning))
