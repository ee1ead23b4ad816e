"""Settings of a format on their way to quantities of perfgrid; each key is understood, assumed or ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from perfgrid.catalog.schema import convert
from perfgrid.engine.errors import PerfgridError, nearest

from .arguments import hyphenated
from .formats import USUAL, Case, Format, Key, Product, conditions_in, glossary, holds, solved
from .job import UNKNOWN
from .kinds import NOT_MODELLED, OFF, UNMODELLED, could_change, program_keys
from .launcher import chosen
from .lists import LISTS
from .models import PUBLISHED_FORMATS
from .settings import Settings
from .stops import Stop, refuse
from .words import FALSE, NO_WORDS, NULL, UNSET, converted, equal, in_list, plain, plainly, text_of, words_of

_DEFAULT = "not stated: the default of {title}"
ACCUMULATION = "accumulation"
BATCH = ("global_batch",)
AS_STACK = f"{NOT_MODELLED}: perfgrid takes what its software stack does"
ALONE = {"chunks": "pp", "sequence_parallel": "tp"}  # without effect on one such rank
MOST_LOOKED_UP = 100
BY_DEVICES = ("devices", "global_batch")  # their products divide the devices between degrees


class Reader:
    """The settings of a job, on their way to quantities."""

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

    def _states(self, quantity: str) -> bool:
        """Whether other keys of the files state a quantity, so that --set may not."""
        cases = [case for case in self.form.cases if case.quantity == quantity]
        stated = [case for case in cases if case.contains or any(word is not False for word in case.keys.values())]
        return quantity in self.origins or any(self._satisfied(case) for case in stated)

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

    def state(self, given: Mapping[str, Any], where: str) -> None:
        """Take in what launchers state, what several keys state together, and what the user states.

        The user fills what the files leave open; PerfgridError where they state another value.
        """
        for name in given:
            if name not in glossary():
                raise PerfgridError(f"no quantity {name!r}{nearest(name, glossary())}")
        stated = {name: plain(convert(glossary()[name], value, name), name) for name, value in given.items()}
        self._launched(stated.get("devices"), where)
        for quantity in dict.fromkeys(case.quantity for case in self.form.cases):
            if quantity not in self.found:
                self._decide(quantity, stated)
        self.undecided = {name: why for name, why in self.undecided.items() if name not in stated}
        for name, value in stated.items():
            if self.found.setdefault(name, value) != value:
                if name in self.origins and self.found[name] != USUAL and name not in self.unsure:
                    told = f"{name} is {text_of(self.found[name])} by {self.origins[name]}, not {text_of(value)}"
                    how = "" if name == "devices" else ": change the file, or leave --set out"
                    raise PerfgridError(f"{where}{told}{how}")
                self.found[name] = value
        open_ = [stop for stop in self.stops if stop.quantity not in stated]
        refuse([replace(stop, how="") if self._states(stop.quantity) else stop for stop in open_])

    def _launched(self, devices: int | None, where: str) -> None:
        """Take in what launchers state of devices; the user chooses where two of them contradict each other."""
        launched = self.settings_devices
        if self.form.workload != "training":  # a server takes a part of its machine, as its own degrees say
            return
        for word in launched.unread:
            self.ignored.append((word, "", "no one number: the devices are left open"))
        values = chosen(launched, devices, where)
        parts = {n for product in self.form.equations() for n in (product.left, *product.right)}
        for name, value in values.items():
            if name != "devices" and name not in parts:
                continue
            if self.found.setdefault(name, value) != value:
                told = f"{self.origins[name]} {self.found[name]} contradicts {launched.origins[name]}"
                raise PerfgridError(f"{where}{told}: both state {name}")
            self.origins.setdefault(name, launched.origins[name])
        rows: dict[str, str] = {}
        for name, words in launched.origins.items():
            if name in values:
                rows[words] = ", ".join(filter(None, (rows.get(words), f"{name} = {values[name]}")))
        self.understood += [(words, "", meaning) for words, meaning in rows.items()]

    def values(self, where: str) -> dict[str, Any]:
        """All quantities: those stated, those that follow, defaults."""
        told = {shown for shown, *_ in self.understood}
        self.ignored += [row for keys, row in self.unexpressed if not {self.form.shown(key) for key in keys} <= told]
        named = {shown for text, *_ in (*self.understood, *self.ignored) for shown in text.split()}
        for case in self.form.cases:
            for key in (*case.keys, *case.contains):
                if key in self.settings and self.form.shown(key) not in named:
                    named.add(self.form.shown(key))
                    silent = text_of(self.settings[key]).lower() in (*FALSE, *UNSET)
                    taken = f" = {text_of(self.found[case.quantity])} holds" if case.quantity in self.found else ""
                    why = "is off" if silent else "without effect beside the other keys, or not supported"
                    why = self.form.reason_to_ignore(key) or f"{why}: {case.quantity}{taken or ' is not stated by it'}"
                    self.ignored.append((self.form.shown(key), text_of(self.settings[key]), why))
        for key, beyond in self._beyond():
            self.ignored.append((f"{self.form.shown(key)} {' '.join(beyond)}", "", NOT_MODELLED))
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
        return self._listed(self._with_devices(values, defaults, where))

    def _with_devices(self, values: dict[str, Any], defaults: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Values with what follows from the number of devices, which a batch alone does not tell."""
        listed = list(self.assumed)
        alone = self._fallen_back(self._defaulted(values, defaults, where, BATCH), where, BATCH)
        enforced = alone.get("devices") is not None or any(self._tells(product) for product in self.form.equations())
        self.assumed = listed
        without = () if enforced else BATCH
        found = self._fallen_back(self._defaulted(values, defaults, where, without), where, without)
        if found.get("devices") is None:
            self.open.append("devices")
        for name, why in self.undecided.items():
            if not self._moot(name, found):
                self.open.append(name)
                why += f": the default of {self.form.title} is taken: give the file of the recipe, or --set {name}=..."
            self.assumed.append((name, text_of(found[name]), why))
        told = {*self.found, *self.form.implied, *(name for name, *_ in self.assumed)}
        for name in (n for n in found if n in glossary() and n not in told):
            if key := self._stated_as(name, found):
                self.understood = [
                    (shown, text, f"{meaning}, {name} = {text_of(found[name])}" if shown == key else meaning)
                    for shown, text, meaning in self.understood
                ]
            elif (equation := self._equation(name, found)) and glossary()[name].of != "model":
                self.assumed.append((name, text_of(found[name]), f"implied by {equation}"))
        return found

    def _fallen_back(self, values: dict[str, Any], where: str, without: tuple[str, ...]) -> dict[str, Any]:
        """Values with the fallbacks of what is not stated, in their order, which are listed as assumed."""
        for row in self.form.fallbacks:
            value = values.get(row.of) if row.of else row.value
            if value is None or values.get(row.quantity) is not None or not holds(conditions_in(row.when), values):
                continue
            values = solved(self.form, values | {row.quantity: value}, where, self.origins, without=without)
            if row.quantity in glossary():
                why = row.why or f"not stated: the default of {self.form.title}"
                self.assumed.append((row.quantity, text_of(value), why))
        for need in self.form.needed:
            if values.get(need.quantity) is None and holds(conditions_in(need.when), values):
                raise PerfgridError(f"{where}states no {need.quantity}, {need.why}: give --set {need.quantity}=...")
        return values

    def _equation(self, name: str, values: Mapping[str, Any]) -> str:
        """The first product that joins a quantity with known ones, with its numbers."""
        for product in self.form.equations():
            if name in (product.left, *product.right) and product.known(values) and len(product.right) > 1:
                parts = [one if one.isdigit() else f"{one} {text_of(values[one])}" for one in product.right]
                sign = " + " if product.sums else " x "
                return f"{product.left} {text_of(values[product.left])} = {sign.join(parts)}"
        return ""

    def _stated_as(self, name: str, values: Mapping[str, Any]) -> str:
        """The key that states a quantity in other words: equal by a product whose other terms are 1; empty for none."""
        for product in self.form.equations():
            terms = [one for one in (product.left, *product.right) if one != name]
            if product.sums or name not in (product.left, *product.right) or not product.known(values):
                continue
            same = [one for one in terms if one in self.origins and values[one] == values[name]]
            others = [one if one.isdigit() else values[one] for one in terms if one not in same[:1]]
            if same and all(float(one) == 1 for one in others) and same[0] not in glossary():
                return self.origins[same[0]]
        return ""

    def _tells(self, product: Product) -> bool:
        """Whether a batch determines the replicas: all else of an equation that the framework checks is stated."""
        others = [name for name in product.right if name != "dp" and not name.isdigit()]
        whole = product.left == "global_batch" and "dp" in product.right and not product.when
        return whole and all(name in self.found for name in (product.left, *others))

    def _beyond(self) -> Iterable[tuple[str, list[str]]]:
        """Keys that hold a list, with its words that no case has."""
        known: dict[str, set[str]] = {}
        for case in self.form.cases:
            for key, word in case.contains.items():
                known.setdefault(key, set()).add(word)
        for key in known.keys() & self.settings.keys():
            if beyond := sorted(words_of(self.settings[key]) - known[key] - NO_WORDS):
                yield key, beyond

    def _unread_degrees(self, values: Mapping[str, Any]) -> dict[str, str]:
        """The degrees and batches whose keys are stated with words that are not read, with these keys."""
        products = self.form.equations()
        layout = {*BY_DEVICES, "ep"}
        terms = [(p.left, (*p.right, *(name for name, *_ in p.when))) for p in products]
        while more := {n for left, names in terms if left in layout for n in names if not n.isdigit()} - layout:
            layout |= more
        layout -= {"devices", "nodes", "devices_per_node"}  # --devices states them
        keys = ((row.quantity, self.form.shown(key)) for key, row in self.form.keys.items())
        return {n: key for n, key in keys if n in layout and key in self.unread and values.get(n) is None}

    def _check_read(self, unread: Mapping[str, str], where: str) -> None:
        """PerfgridError that names a key whose word is not read, and how to state its value."""
        for name, key in sorted(unread.items()):
            found, why = self.unread[key]
            file, colon, word = found.partition(": ")
            flag = any(row.quantity == name and row.kind in ("flag", "switch") for row in self.form.keys.values())
            told = f"write its value, such as {key} {'true' if flag else '8'}"
            told = f"give --set {name}=..." if name in glossary() else told
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
            if value is None or value == USUAL or (name == ACCUMULATION and self._divided(values)):
                continue
            if not self._moot(name, values):
                self._check_left(name, where)
            values = solved(self.form, values | {name: value}, where, self.origins, without=without)
            if name in glossary() and (glossary()[name].of != "model" or "hidden_size" in self.found):
                keys = [self.form.shown(key) for key, row in self.form.keys.items() if row.quantity == name]
                why = f"no {' or '.join(keys)}" if keys else "not stated"
                why = next((f"{key} is not read" for key in keys if key in self.unread), why)
                why = f"{why}: the default of {self.form.title}"
                published = isinstance(default, str) and default in PUBLISHED_FORMATS
                self.assumed.append((name, text_of(value), "as the checkpoint is published" if published else why))
        return values

    def _check_left(self, name: str, where: str) -> None:
        """PerfgridError where a key of the job states by itself what a default would stand for."""
        if key := self._named_by(name):
            raise PerfgridError(
                f"{where}{self._said(key)} states {name} itself, which is not read: give the file of the recipe "
                f"before this one, or {'--set ' + name + '=...' if name in glossary() else self._key_of(name)}"
            )

    def _named_by(self, quantity: str) -> str:
        """The key of the job that names a recipe or configuration which states a quantity; empty for none."""
        return next((k for k, names in self.form.leaves.items() if quantity in names and k in self.settings), "")

    @staticmethod
    def _moot(name: str, values: Mapping[str, Any]) -> bool:
        """Whether a quantity is without effect in a design, because its ranks are one."""
        return values.get(ALONE.get(name, ""), 0) == 1

    def _key_of(self, name: str) -> str:
        """The key that states a quantity."""
        return next((self.form.shown(key) for key, row in self.form.keys.items() if row.quantity == name), name)

    @staticmethod
    def _divided(values: Mapping[str, Any]) -> bool:
        """Whether a stated batch waits for devices to be divided: accumulation follows from them."""
        return values.get("devices") is None and values.get("global_batch") is not None

    def _listed(self, values: dict[str, Any]) -> dict[str, Any]:
        """The same values; listed are the optional quantities that nothing states."""
        for name in dict.fromkeys(case.quantity for case in self.form.cases):
            known = glossary().get(name)
            if values.get(name) is None and known and known.optional and known.of != "software":
                keys = dict.fromkeys(k for case in self.form.cases if case.quantity == name for k in case.keys)
                stated = [self._said(key) for key in keys if key in self.settings]
                why = f"not by {', '.join(stated)}" if stated else f"no {' or '.join(map(self.form.shown, keys))}"
                default = text_of(glossary()[name].word(glossary()[name].default_value))
                self.assumed.append((name, default, f"{why}: the default of perfgrid"))
        for name in self.form.open:  # what the program states in its code, recomputation say
            if values.get(name) is None and name in glossary() and glossary()[name].optional:
                default = text_of(glossary()[name].word(glossary()[name].default_value))
                self.assumed.append((name, default, f"{self.form.title} does not state it: the default of perfgrid"))
        return values

    def _decide(self, quantity: str, stated: Mapping[str, Any]) -> None:
        """The value of a quantity that several keys state: that of the first case which they satisfy."""
        cases = [case for case in self.form.cases if case.quantity == quantity]
        cases = [case for case in cases if case.read and self.form.has(case, self.version)]
        case = next(filter(self._satisfied, cases), None)
        if case is None:
            return
        keys = [key for key in (*case.keys, *case.contains) if key in self.settings]
        others = [key for c in cases for key in self._in_effect(c) if key in self.settings and key not in keys]
        others = [key for key in dict.fromkeys(others) if key not in self.form.keys]  # these state one of their own
        others = [key for key in others if text_of(self.settings[key]).lower() not in (*FALSE, *UNSET)]
        if not keys and quantity in stated:
            return  # the files leave it open
        self.found[quantity] = case.value
        silent = not any(key in self.settings for c in cases for key in (*c.keys, *c.contains))
        if not keys and silent and (by := self._named_by(quantity)):
            self.undecided[quantity] = f"{self._said(by)} states it itself, which is not read"
            return
        beside = [key for key in keys if any(self._alone_means(key, c) for c in cases if c.value != case.value)]
        for key in keys:
            means = case.means or f"{quantity} = {text_of(case.value)}"
            if key in beside and len(beside) < len(keys):
                first = next(self.form.shown(one) for one in keys if one not in beside)
                means = means if case.means else f"with {first}"
            else:
                self.origins.setdefault(quantity, self._said(key))
            self._understand(key, means)
        if case.note:
            self.assumed.append(
                (" ".join(map(self._said, keys)) or quantity, "" if keys else text_of(case.value), case.note)
            )
        if not keys and others:
            text = " ".join(map(self._said, others))
            why = f"this value or combination is not supported; {quantity} = {text_of(case.value)} is taken"
            self.unexpressed.append((others, (text, "", why)))
            known = all(stop.key != self.form.shown(others[0]) for stop in self.stops)
            if self.form.strict and case.value != USUAL and known:
                self._stop(others[0], text_of(self.settings[others[0]]), self._alone(others[0], cases), quantity)
        elif not keys and quantity in glossary() and not case.note:
            here = dict.fromkeys(key for c in cases for key in c.keys if key in self.settings)
            told = f"the default of {self.form.title}, which {', '.join(map(self._said, here))} leaves"
            self.assumed.append(
                (quantity, text_of(case.value), told if here else _DEFAULT.format(title=self.form.title))
            )

    def _alone_means(self, key: str, case: Case) -> bool:
        """Whether a case holds by this key alone."""
        return (
            {name for name, word in case.keys.items() if word is not False} == {key}
            and not case.contains
            and (any(equal(self.settings[key], word) for word in in_list(case.keys[key])))
        )

    def _in_effect(self, case: Case) -> list[str]:
        """The keys of a case that another value of it could be meant by.

        The first one, and others that no case takes as they stand, unless one of them is stated to be off.
        """
        wanted = [key for key, word in case.keys.items() if word is not False]
        if any(key in self.settings and text_of(self.settings[key]).lower() in (*FALSE, *UNSET) for key in wanted):
            return list(case.keys)[:1]
        taken = {key for c in self.form.cases if self._satisfied(c) for key in c.keys}
        return [key for key in wanted if key == next(iter(case.keys)) or key not in taken]

    def _said(self, key: str) -> str:
        """A key with its value."""
        text = text_of(self.settings[key])
        return self.form.shown(key) if text.lower() == "true" else f"{self.form.shown(key)} {text}"

    def _alone(self, key: str, cases: list[Case]) -> str:
        """Why a key that no case takes as it stands is not understood: what cases of it have beside."""
        alike = [
            case
            for case in cases
            if key in case.keys and any(equal(self.settings[key], w) for w in in_list(case.keys[key]))
        ]
        beside = dict.fromkeys(
            other for case in alike for other, wanted in case.keys.items() if other != key and wanted is not False
        )
        told = f" without a known value of {' or '.join(map(self.form.shown, beside))}" if beside else ""
        return f"is not understood{told}"

    def _understand(self, key: str, meaning: str) -> None:
        text = text_of(self.settings[key])
        for i, (shown, _, before) in enumerate(self.understood):
            if shown == self.form.shown(key):
                told = before if meaning in before.split(", ") else f"{before}, {meaning}"
                self.understood[i] = (shown, text, told)
                return
        self.understood.append((self.form.shown(key), text, meaning))

    def _satisfied(self, case: Case) -> bool:
        for key, wanted in case.keys.items():
            value = self.settings.get(key)
            if isinstance(wanted, bool):
                if (value is not None and text_of(value).lower() not in (*FALSE, *UNSET)) != wanted:
                    return False
            elif value is None and NULL in in_list(wanted):
                if key not in self.settings:
                    return False
            elif value is None or not any(equal(value, word) for word in in_list(wanted)):
                return False
        return all(word in words_of(self.settings.get(key)) for key, word in case.contains.items())
