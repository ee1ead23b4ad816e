"""Settings of a format on their way to quantities of perfgrid; each key is understood, assumed or ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perfgrid.engine.errors import PerfgridError

from .cases import Cases
from .formats import USUAL, Product, conditions_in, glossary, holds, solved
from .kinds import NOT_MODELLED
from .models import PUBLISHED_FORMATS
from .words import FALSE, NO_WORDS, UNSET, text_of, words_of

ACCUMULATION = "accumulation"
BATCH = ("global_batch",)
ALONE = {"chunks": "pp", "sequence_parallel": "tp"}  # without effect on one such rank
BY_DEVICES = ("devices", "global_batch")  # their products divide the devices between degrees


class Reader(Cases):
    """The settings of a job, on their way to quantities: what follows of those stated, and the defaults of the rest."""

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

    @staticmethod
    def _moot(name: str, values: Mapping[str, Any]) -> bool:
        """Whether a quantity is without effect in a design, because its ranks are one."""
        return values.get(ALONE.get(name, ""), 0) == 1

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
