"""What files of a job say beside its settings: the machine, variables of the environment, the version of an image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from perfgrid.catalog.reading import from_toml, read_text

from .kinds import UNMODELLED

MOST = 40  # variables that are listed
_TABLE = Path(__file__).with_name("variables.toml")
_MACHINE = re.compile(  # labels of Kubernetes and of clouds; a kind of Slurm's generic resources
    r"\b(gpu\.product|gke-accelerator|gke-tpu-accelerator|instance-type|gres=gpu)[\"']?\s*[:=]\s*[\"']?([A-Za-z][\w.-]*)"
)
_IMAGE = re.compile(r"\b((?:vllm/vllm-openai|lmsysorg/sglang|nvcr\.io/nvidia/[\w./-]+):[\w.-]+)")
_VARIABLE = re.compile(r"\b([A-Z][A-Z0-9_]{3,60})[\"']?(?:=|:[ ]|\n\s*value:)[ ]?[\"']?([\w.:+-]{1,60})")
_COMMENT = re.compile(r"^\s*#(?!SBATCH).*$", re.MULTILINE)


def surroundings(texts: Mapping[str, str], title: str) -> list[tuple[str, str, str]]:
    """What texts of a job state beside its settings: name, value, what is made of it; ``title``: how it is read."""
    found = dict.fromkeys(row for text in texts.values() for row in _of(_COMMENT.sub("", text), title))
    return list(found)


def _of(text: str, title: str) -> Iterator[tuple[str, str, str]]:
    for found in _MACHINE.finditer(text):
        yield found[1], found[2], "names the machine: the device is that of --on"
    for found in _IMAGE.finditer(text):
        yield (
            "image",
            found[1],
            f"names a version, taken where it is the engine's own image; options are read as those of {title}",
        )
    values = {found[1]: found[2] for found in _VARIABLE.finditer(text)}
    rows = [(name, value) for name, value in values.items() if not _as_taken(name, value)]
    for name, value in rows[:MOST]:
        yield name, value, f"{UNMODELLED} change the time: a variable of the environment"


def _as_taken(name: str, value: str) -> bool:
    """Whether a variable changes nothing of what is predicted, with this value."""
    taken = next((values for pattern, values in _variables().items() if fnmatchcase(name, pattern)), None)
    return taken is None or value.lower() in taken


@cache
def _variables() -> dict[str, list[str]]:
    return from_toml(read_text(_TABLE), f"{_TABLE}: ")
