"""Tables of formats that extend or include others: one table in the end."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from perfgrid.catalog.reading import from_toml, read_text

FOLDER = Path(__file__).with_name("formats")
OF_ONE = (
    "prefix",
    "writes",
    "written_since",
    "dated",
    "command",
    "fixed",
    "launchers",
    "programs",
    "complete",
)  # not handed down
JOINED = ("cases", "unpriced", "fallbacks", "needed", "refused", "products", "files")  # own rows, then inherited ones


def whole(name: str) -> dict[str, Any]:
    """The table of a format with those that it extends or includes; cases without any key stand last."""
    return deepcopy(_whole(name))


@cache
def _whole(name: str) -> dict[str, Any]:
    path = FOLDER / f"{name}.toml"
    content = from_toml(read_text(path), f"{path}: ")
    names = [content["extends"].partition("@")[0]] if "extends" in content else []
    names += content.get("includes", [])
    bases = dict.fromkeys(one for name in names for one in (name, *whole(name)["bases"]))
    found = _including(_extended(content))
    found["cases"] = sorted(found.get("cases", []), key=lambda case: not (case.get("keys") or case.get("contains")))
    return found | {"bases": list(bases)}


def _including(content: dict[str, Any]) -> dict[str, Any]:
    """The table of a format with keys, cases and reasons of those that it includes, behind its own."""
    for name in content.pop("includes", []):
        other = whole(name)
        for part in ("keys", "aliases", "taken"):
            content[part] = {**other.get(part, {}), **content.get(part, {})}
        for part in ("cases", "unpriced", "files"):
            content[part] = [*content.get(part, []), *other.get(part, [])]
        ignored = content.get("ignored", {})
        content["ignored"] = {
            why: [*ignored.get(why, []), *other.get("ignored", {}).get(why, [])]
            for why in dict.fromkeys((*ignored, *other.get("ignored", {})))
        }
    return content


def _extended(content: dict[str, Any]) -> dict[str, Any]:
    """The table of a format, with that of a version of the format that it extends: its own rows come first."""
    if (base := content.pop("extends", None)) is None:
        return content
    name, _, version = base.partition("@")
    inherited = whole(name)
    inherited.pop("bases")
    found = {name: value for name, value in inherited.items() if name not in OF_ONE}
    place = inherited["versions"].index
    until = place(version) if version else len(inherited["versions"]) - 1

    def has(row: dict[str, Any]) -> bool:
        since, end = row.pop("since", None), row.pop("until", None)
        return (since is None or place(since) <= until) and (end is None or until < place(end))

    found["keys"] = {key: row for key, row in found["keys"].items() if has(row)}
    found["cases"] = [case for case in found["cases"] if has(case)]
    for name, value in content.items():
        if isinstance(value, dict) and isinstance(found.get(name), dict) and name != "defaults":
            more = {k: [*v, *found[name].get(k, [])] for k, v in value.items() if isinstance(v, list)}
            found[name] = {**found[name], **value, **(more if name == "ignored" else {})}
        elif name in JOINED:
            found[name] = [*value, *found.get(name, [])]
        else:
            found[name] = value
    return found
