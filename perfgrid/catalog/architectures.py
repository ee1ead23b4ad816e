"""How the configurations of each Hugging Face ``model_type`` are read: the rows of ``architectures.toml``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .files import read_toml
from .schema import Value

BY_KEYS = "_by_keys"  # the row of a model_type that has none
_WORDS = {"sliding_attention": "window", "full_attention": "full"}  # of the layer_types of most architectures
ANY = "any"  # value of `only` that lifts the limit of an extended row


@dataclass(frozen=True)
class Architecture:
    """How configurations of one ``model_type`` are read."""

    keys: Mapping[str, str | list[str]] = field(default_factory=dict)  # quantity -> the key or keys that may hold it
    fixed: Mapping[str, Value] = field(default_factory=dict)  # what every such model has
    absent: Mapping[str, Value] = field(default_factory=dict)  # what a missing or null key means
    ffn_multiple: float = 0  # of the hidden size where no key states the feed-forward width; 0: it must be stated
    full_every: int = 0  # every n-th layer attends beyond the window; 0: none does
    window_from: Mapping[str, float] = field(default_factory=dict)  # key of the first layer with a window -> if missing
    switches: Mapping[str, list[Any]] = field(default_factory=dict)  # quantity -> its flag, and that if missing
    only: Mapping[str, Any] = field(default_factory=dict)  # keys of which one value alone is expressed
    same: Mapping[str, str] = field(default_factory=dict)  # keys that must hold what another one holds
    last: tuple[str, ...] = ()  # keys that must name the last layer
    dense_list: str = ""  # key that lists the layers with a dense feed-forward block
    expert_list: str = ""  # key that lists the layers with experts
    layer_kinds: str = ""  # key that lists for every layer whether it is dense or sparse
    indexer_list: str = ""  # key that lists for every layer whether it has an indexer of its own: full or shared
    shared_width: str = ""  # key of the width of all shared experts together
    layer_lists: tuple[str, ...] = ("layer_types",)  # keys with a word or letter for the kind of each layer
    words: Mapping[str, str] = field(default_factory=lambda: dict(_WORDS))  # word or letter -> kind (layer_kinds.py)
    layer_numbers: Mapping[str, str] = field(default_factory=dict)  # key that lists layers, from 1 on -> their kind
    period: Mapping[str, float] = field(default_factory=dict)  # key n -> if missing; every n-th attends to everything
    between: str = "recurrent"  # kind of the layers between these
    blocks: bool = False  # mixers and feed-forward parts are counted apart: two blocks are a layer
    parallel: bool = False  # every layer has a recurrent mixer beside its attention
    inner_width: str = ""  # key of the width of all heads of a mixer
    inner_multiple: str = ""  # key of that width as a multiple of the hidden size, where it is not stated
    state_format: str = ""  # key of the number format of recurrent states
    ungrouped: Mapping[str, Any] = field(default_factory=dict)  # values of keys with which groups limit nothing
    share_factor: str = ""  # key n of the layers that share keys and values, the first of n its own, if use_cla is set
    unused: tuple[str, ...] = ()  # keys without effect in this architecture

    def but(self, **changes: Any) -> Architecture:
        """A copy with mappings and lists extended and other fields replaced."""

        def joined(name: str, value: Any) -> Any:
            if isinstance(value, Mapping):
                return {**getattr(self, name), **value}
            return (*getattr(self, name), *value) if isinstance(value, list) else value

        return replace(self, **{name: joined(name, value) for name, value in changes.items()})

    def keys_of(self, quantity: str) -> list[str]:
        """The keys that may hold a quantity."""
        keys = self.keys.get(quantity, [])
        return [keys] if isinstance(keys, str) else keys

    @property
    def stated(self) -> set[str]:
        """The keys that it reads or knows to have no effect; of nested ones, the outer key."""
        keys = [key for quantity in self.keys for key in self.keys_of(quantity)]
        keys += [*self.only, *self.unused, *self.layer_lists, *self.layer_numbers, *self.period]
        keys += [
            self.expert_list,
            self.indexer_list,
            self.inner_width,
            self.inner_multiple,
            self.state_format,
            self.share_factor,
        ]
        return {part for key in keys for part in (key, key.partition(".")[0])}


_TABLES = read_toml(Path(__file__).with_suffix(".toml"))
_KEYS: Mapping[str, list[str]] = _TABLES.pop("_keys")
_NOT_EXPRESSED: Mapping[str, Mapping[str, str]] = _TABLES.pop("_not_expressed")


def _read() -> dict[str, Architecture]:
    rows: dict[str, Architecture] = {"": Architecture()}
    for name, stated in _TABLES.items():
        rows[name] = rows[stated.pop("extends", "")].but(**stated)
    return {name: row for name, row in rows.items() if name == BY_KEYS or (name and not name.startswith("_"))}


_ROWS = _read()
ARCHITECTURES: Mapping[str, Architecture] = {name: row for name, row in _ROWS.items() if name != BY_KEYS}


def architecture(kind: str) -> Architecture:
    """The row of a ``model_type``, or that of the keys which most configurations share."""
    return _ROWS.get(kind, _ROWS[BY_KEYS])


def _matches(key: str, patterns: Iterable[str]) -> str | None:
    """The pattern that a key or its last part matches."""
    names = (key, key.rpartition(".")[2])
    return next((pattern for pattern in patterns if any(fnmatchcase(name, pattern) for name in names)), None)


def not_expressed(kind: str, config: Mapping[str, Any], read: Iterable[str]) -> str | None:
    """What a configuration has that no entry expresses, by its type or by a key that says more than nothing."""
    if (what := _NOT_EXPRESSED["types"].get(kind)) is not None:
        return f"model_type {kind!r} has {what}, which is not supported"
    for key in sorted(set(config) - set(read)):
        if config[key] and (pattern := _matches(key, _NOT_EXPRESSED["keys"])):
            return f"{key} says that it has {_NOT_EXPRESSED['keys'][pattern]}, which is not supported"
    return None


@dataclass(frozen=True)
class Understood:
    """What became of the keys of a configuration."""

    by_row: bool  # whether its architecture is known
    read: tuple[str, ...]  # what the entry says
    no_effect: tuple[str, ...]  # on anything that is modelled
    small: tuple[str, ...]  # left out: biases and norms of single matrices
    ignored: tuple[str, ...]  # not known, and taken to be without effect: words, flags, factors
    unknown: tuple[str, ...]  # what may change the result


def understood(kind: str, config: Mapping[str, Any], read: set[str], unused: Iterable[str]) -> Understood:
    """The keys of a configuration, nested ones as ``outer.inner``, by what became of them."""
    found: dict[str, list[str]] = {"read": [], "no_effect": [], "small": [], "ignored": [], "unknown": []}
    for key, value in _leaves(config, read):
        if key in read:
            place = "read"
        elif key in unused or _matches(key, _KEYS["no_effect"]):
            place = "no_effect"
        elif _matches(key, _KEYS["small"]):
            place = "small" if value else "no_effect"
        elif value is None:
            place = "no_effect"
        else:
            place = "unknown" if value and _may_matter(key, value) else "ignored"
        found[place].append(key)
    return Understood(kind in ARCHITECTURES, **{place: tuple(sorted(keys)) for place, keys in found.items()})


def _may_matter(key: str, value: Any) -> bool:
    """Whether a key that nothing is known of may change sizes or costs: by its name, or as a whole number or a list."""
    if _matches(key, _KEYS["matter"]):
        return True
    return not isinstance(value, (str, bool)) and not (isinstance(value, float) and value % 1)


def _leaves(config: Mapping[str, Any], read: set[str]) -> Iterable[tuple[str, Any]]:
    """The keys with their values; of a table of which single keys were read, those that it holds."""
    for key, value in config.items():
        if isinstance(value, Mapping) and any(r.startswith(f"{key}.") for r in read) and key not in _TABLED:
            yield from ((f"{key}.{inner}", held) for inner, held in value.items())
        else:
            yield key, value


_TABLED = ("quantization_config",)  # read as a whole
