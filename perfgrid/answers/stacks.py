"""Engines of a serving question: by which words they are stated, and which a question does not tell apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from perfgrid.analysis.assumed_software import by_stack
from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.reductions.argmin import listed
from perfgrid.study.study import Study

from .question import Question
from .search import Index

WORDS = {"trtllm": "tensorrt-llm"}  # of the field, without case and separators
VERSIONS = {  # of an engine: the first version of each entry, the newest first
    "vllm": (((0, 19), "vllm"), ((0, 14), "vllm-0.14"), ((0, 8), "vllm-2025"), ((0, 4), "vllm-2024")),
    "tensorrtllm": (((1, 0), "tensorrt-llm"), ((0, 8), "tensorrt-llm-2024"), ((0, 5), "tensorrt-llm-2023")),
    "sglang": (((0, 4), "sglang"),),
}
VERSION = re.compile(r"(?P<engine>.*?\w)[\s=@:_-]*v?(?P<version>\d+\.\d+)(\.\w+)*")

FELT = ("output_tokens_per_second", "time_to_first_token", "time_per_output_token", "memory_limit")  # may differ
EQUAL = 1e-9  # relative difference


def stacks_alike(study: Study, points: Sequence[Index], objective: str, own: str) -> list[str]:
    """Other stacks on which some designs of a serving study do exactly as on their own: nothing tells them apart."""
    space = listed(study.space, list(np.transpose(points)))
    choices, found = study.file.choices, dict[str, bool]()
    for output in dict.fromkeys((objective, *FELT)):
        values = by_stack(study.registry, study.catalog, space, choices, output, (output,), study.stated, serves=True)
        for name, other in values.items() if own in values else ():
            alike = np.allclose(other, values[own], rtol=EQUAL, atol=0)
            found[name] = found.get(name, True) and alike
    return [name for name, alike in found.items() if alike and name != own]


def engine_named(engine: str | None, software: str | None) -> str | None:
    """The engine of a question as the catalog calls it; ``software``: the former name of the option.

    A version behind the name is that of the engine: vLLM 0.11. PerfgridError for two names, and for a version before
    the first one of the catalog.
    """
    if engine is not None and software is not None and engine != software:
        raise PerfgridError(
            f"state the engine once: found {engine!r:.40} and, by its former name software, {software!r:.40}"
        )
    text = engine if engine is not None else software
    if text is None:
        return None
    name, bracket, changes = text.partition("[")
    found = VERSION.fullmatch(name.strip())
    word = re.sub(r"[^a-z0-9]", "", (found["engine"] if found else name).lower())
    if found is None:
        return WORDS.get(word, name) + bracket + changes
    known = VERSIONS.get(re.sub(r"[^a-z0-9]", "", WORDS.get(word, word)))
    if known is None:
        return text
    version = tuple(map(int, found["version"].split(".")))
    entry = next((entry for first, entry in known if version >= first), None)
    if entry is None:
        first = ".".join(map(str, known[-1][0]))
        raise PerfgridError(f"{text!r:.40}: the catalog has this engine from version {first} on")
    return entry + bracket + changes


def check_serves(asked: Question) -> None:
    """PerfgridError where the software of a question is for training only, with the engines."""
    if asked.software is not None and not asked.catalog.entry("software", asked.software).values["serves"]:
        raise PerfgridError(f"{asked.software} is for training only; engines: {', '.join(engines(asked.catalog))}")


def engines(catalog: Catalog) -> list[str]:
    """The software of a catalog that serves models."""
    return sorted(name for name, entry in catalog.tables["software"].items() if entry.values["serves"])
