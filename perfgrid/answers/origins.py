"""Where the inputs of a question come from: an option that states them, or a rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perfgrid.study.ledger import Origin

LAYOUT = ("tp", "cp", "pp", "dp", "ep", "etp", "chunks")


def origin(option: str, given: Any, otherwise: str) -> Origin:
    """By the option, or where it is not given by what is taken instead."""
    return ("stated", option) if given is not None else ("assumed", f"{otherwise} ({option})")


def of_all(searched: Iterable[str], devices: Origin = ("stated", "--devices")) -> dict[str, Origin]:
    """What options of every question state: model, devices, their number; axes and degrees of designs are no inputs."""
    named: dict[str, Origin] = {"model": ("stated", "MODEL"), "device": ("stated", "--on"), "devices": devices}
    return dict.fromkeys((*searched, *LAYOUT)) | named
