"""Where the inputs of a question come from: an option that states them, or a rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perfgrid.study.ledger import Origin


def origin(option: str, given: Any, otherwise: str) -> Origin:
    """By the option, or where it is not given by what is taken instead."""
    return ("stated", option) if given is not None else ("assumed", f"{otherwise} ({option})")


def of_all(searched: Iterable[str]) -> dict[str, Origin]:
    """What options of every question state: the model and the devices; and the axes of designs, which are no inputs."""
    named: dict[str, Origin] = {"model": ("stated", "MODEL"), "device": ("stated", "--on")}
    return named | dict.fromkeys(searched)
