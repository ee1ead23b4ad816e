"""What several keys state together, and what launchers and the user state."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from perfgrid.catalog.schema import convert
from perfgrid.engine.errors import PerfgridError, nearest

from .formats import USUAL, Case, glossary
from .launcher import chosen
from .stated import Stated
from .stops import refuse
from .words import FALSE, NULL, UNSET, equal, in_list, plain, text_of, words_of

_DEFAULT = "not stated: the default of {title}"


class Cases(Stated):
    """The settings of a job by the quantities that their keys state, alone or together."""

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

    def _states(self, quantity: str) -> bool:
        """Whether other keys of the files state a quantity, so that --set may not."""
        cases = [case for case in self.form.cases if case.quantity == quantity]
        stated = [case for case in cases if case.contains or any(word is not False for word in case.keys.values())]
        return quantity in self.origins or any(self._satisfied(case) for case in stated)

    def _decide(self, quantity: str, stated: Mapping[str, Any]) -> None:
        """The value of a quantity that several keys state: that of the first case which they satisfy."""
        cases = [case for case in self.form.cases if case.quantity == quantity]
        cases = [case for case in cases if case.read and self.form.has(case, self.version)]
        case = next(filter(self._satisfied, cases), None)
        if case is None:
            return
        keys = [key for key in (*case.keys, *case.contains) if key in self.settings]
        taken = {key for c in self.form.cases if self._satisfied(c) for key in c.keys}
        others = [key for c in cases for key in self._in_effect(c, taken) if key in self.settings and key not in keys]
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

    def _alone_means(self, key: str, case: Case) -> bool:
        """Whether a case holds by this key alone."""
        return (
            {name for name, word in case.keys.items() if word is not False} == {key}
            and not case.contains
            and (any(equal(self.settings[key], word) for word in in_list(case.keys[key])))
        )

    def _in_effect(self, case: Case, taken: Container[str]) -> list[str]:
        """The keys of a case that another value of it could be meant by.

        The first one, and others that no case takes as they stand (those it does are ``taken``), unless one of them is
        stated to be off.
        """
        wanted = [key for key, word in case.keys.items() if word is not False]
        if any(key in self.settings and text_of(self.settings[key]).lower() in (*FALSE, *UNSET) for key in wanted):
            return list(case.keys)[:1]
        return [key for key in wanted if key == next(iter(case.keys)) or key not in taken]

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
