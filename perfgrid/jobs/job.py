"""A job: what a configuration states, in the quantities of perfgrid, with what was understood, assumed and ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfgrid.catalog import Entry
from perfgrid.study.ledger import Origin

from .formats import Format


@dataclass(frozen=True)
class Job:
    """The design that a configuration states.

    ``values`` holds quantities of the glossary; ``understood``: key, its text, quantity; ``assumed``: quantity, value,
    why; ``ignored``: key, its text, why. ``model`` is an entry of the catalog, or ``own`` with the shape of the job.
    ``tiers``: of axes of a mesh, the parts between scale-up domains (``dcn_fsdp``); ``domain``: devices of one by the
    parts inside, 0 where the mesh has one domain. ``pools``: the jobs of prefill and
    decode where both are not of one layout; ``values`` are then those of decode. ``open``: quantities that a prediction
    needs and nothing states.
    """

    format: Format
    version: str
    values: dict[str, Any]
    model: Entry | None = None
    own: bool = False
    understood: list[tuple[str, str, str]] = field(default_factory=list)
    assumed: list[tuple[str, str, str]] = field(default_factory=list)
    ignored: list[tuple[str, str, str]] = field(default_factory=list)
    tiers: Mapping[str, int] = field(default_factory=dict)
    domain: int = 0
    pools: Mapping[str, Job] = field(default_factory=dict)
    open: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The share of stated keys that are known: understood, or ignored for a reason that the format states."""
        unknown = sum(why.startswith(UNKNOWN) for _, _, why in self.ignored)
        every = len(self.understood) + len(self.ignored)
        return 1 - unknown / every if every else 1.0

    @property
    def published_context(self) -> int:
        """Tokens of the longest sequence that engines take of its model where nothing else is stated; 0: not known."""
        known: Mapping[str, Any] = self.model.values if self.model else {}
        return int(known.get("published_context") or known.get("context_length") or 0)

    @property
    def stated(self) -> dict[str, str]:
        """What the files have for each key, as text."""
        return {key: text for key, text, _ in (*self.ignored, *self.understood)}

    def origins(self, settings: Iterable[str] = ()) -> dict[str, Origin]:
        """Where each quantity comes from, as of `perfgrid.study.ledger`: a key, an option, or why it is assumed.

        ``settings``: quantities that the user states beside the files.
        """
        found: dict[str, Origin] = dict.fromkeys(self.values, ("implied", self.format.title))
        found |= {name: _taken(why) for name, _, why in self.assumed}
        for key, _, meaning in self.understood:
            found |= {name: ("stated", key) for part in meaning.split(", ") if (name := part.partition(" = ")[0])}
        found |= {name: ("stated", f"--set {name}") for name in settings}
        named: dict[str, Origin] = {"model": ("stated", "the job"), "device": ("stated", "--on")}
        return named | found


def _taken(why: str) -> Origin:
    """The origin of a quantity that no key states, from the note about it."""
    return ("implied", why.removeprefix(IMPLIED)) if why.startswith(IMPLIED) else ("assumed", why)


UNKNOWN = "unknown"
IMPLIED = "implied by "
FILE = "names a file that states the job"
