"""How the configurations of each Hugging Face ``model_type`` are read: the rows of ``architectures.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .files import read_toml
from .schema import Value


@dataclass(frozen=True)
class Architecture:
    """How configurations of one ``model_type`` are read."""

    keys: Mapping[str, str | list[str]] = field(default_factory=dict)  # quantity -> the key or keys that may hold it
    fixed: Mapping[str, Value] = field(default_factory=dict)  # what every such model has
    absent: Mapping[str, Value] = field(default_factory=dict)  # what a missing or null key means
    ffn_multiple: float = 0  # of the hidden size where no key states the feed-forward width; 0: it must be stated
    full_every: int = 0  # every n-th layer attends beyond the window; 0: none does
    only: Mapping[str, Any] = field(default_factory=dict)  # keys of which one value alone is expressed

    def but(self, **changes: Any) -> Architecture:
        """A copy with mappings extended and other fields replaced."""
        return replace(
            self, **{k: {**getattr(self, k), **v} if isinstance(v, Mapping) else v for k, v in changes.items()}
        )

    def keys_of(self, quantity: str) -> list[str]:
        """The keys that may hold a quantity."""
        keys = self.keys.get(quantity, [])
        return [keys] if isinstance(keys, str) else keys


def _read() -> dict[str, Architecture]:
    rows: dict[str, Architecture] = {"": Architecture()}
    for name, stated in read_toml(Path(__file__).with_suffix(".toml")).items():
        rows[name] = rows[stated.pop("extends", "")].but(**stated)
    return {name: row for name, row in rows.items() if name and not name.startswith("_")}


ARCHITECTURES = _read()
