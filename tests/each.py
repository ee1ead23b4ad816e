"""Cases of one test in a loop: quick to collect; every case that fails is reported by its label."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest


def each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``pytest.mark.parametrize`` in one test: every case runs; raises a group of what failed, if anything did.

    For cases of some milliseconds, of which there are many: as tests of their own they cost more than they check.
    Each case has a ``tmp_path`` of its own, and its ``monkeypatch`` is undone behind it.
    """
    wanted, rows = [name.strip() for name in names.split(",")], list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        fixtures = [p for p in signature.parameters.values() if p.name not in wanted]

        @wraps(test)
        def loop(**given: Any) -> None:
            failed: list[BaseException] = []
            for number, row in enumerate(rows):
                values = dict(zip(wanted, (row,) if len(wanted) == 1 else row, strict=True))
                own = dict(given)
                if "tmp_path" in own:
                    own["tmp_path"] = given["tmp_path"] / str(number)
                    own["tmp_path"].mkdir()
                try:
                    if "monkeypatch" in own:
                        with given["monkeypatch"].context() as own["monkeypatch"]:
                            test(**own, **values)
                    else:
                        test(**own, **values)
                except (Exception, pytest.fail.Exception) as error:
                    label = ", ".join(str(getattr(value, "name", value)) for value in values.values())
                    error.add_note(f"case {number}: {label}")
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(rows)} cases", failed)

        loop.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return loop

    return decorate
