"""Which name of a list a user means: without regard to case and separators, or by a part of it that only one has."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfgrid.engine.errors import PerfgridError, shown

_SEPARATORS, _BETWEEN = re.compile(r"[-_.\s]+"), re.compile(r"[-_\s]+")
_NOISE = {  # of names that vendors and drivers print: NVIDIA H100 80GB HBM3
    *("nvidia", "amd", "google", "intel", "instinct", "tesla", "geforce", "tensor", "core", "gpu", "graphics"),
    *("hbm2", "hbm2e", "hbm3", "hbm3e"),
}
_VERSION = re.compile(r"v?\d+(\.\d+)*")
_LONGEST = 100  # characters of a name that is looked for
_MOST = 12  # candidates that a message lists
FORMATS = {  # other names of number formats, without separators: the same values in the same bytes
    **dict.fromkeys(("float32", "float", "single"), "fp32"),
    **dict.fromkeys(("bfloat16", "bfloat"), "bf16"),
    **dict.fromkeys(("float16", "half"), "fp16"),
    **dict.fromkeys(("float8", "e4m3", "e4m3fn", "fp8e4m3", "fp8e5m2", "e5m2", "float8e4m3fn", "float8e5m2"), "fp8"),
    "nvfp4": "fp4",  # scales of one byte for 16 values, as fp4 has them here; mxfp4 has other scales
}


def resolved(name: str, legal: Iterable[str], parts: bool = True) -> str | None:
    """The one of the legal names that a text means; None where it is none of them.

    A name as it stands wins, then one that differs in case and separators alone, another name of a number format, and
    with ``parts`` a part that one name alone has (h200 of h200-sxm-141gb). PerfgridError lists the candidates where a
    text is a part of several.
    """
    legal = list(legal)
    if name in legal or not 0 < len(name) <= _LONGEST:
        return name if name in legal else None
    plain = _plain(name)
    found = [one for one in legal if _plain(one) == plain]
    found = found or [one for one in legal if one == FORMATS.get(plain)]
    words = _words(name)
    for own in (words, [word for word in words if word not in _NOISE]) if parts else ():
        found = found or [one for one in legal if _is_part(own, _words(one))]
    if len(found) > 1:
        every = [*sorted(found)[:_MOST], *([f"{len(found) - _MOST} others"] if len(found) > _MOST else [])]
        raise PerfgridError(f"{shown(name)} may be {', '.join(every[:-1])} or {every[-1]}: name one of them")
    return found[0] if found else None


def _plain(name: str) -> str:
    return _SEPARATORS.sub("", name.casefold())


def _words(name: str) -> list[str]:
    """The words of a name; a version stays whole: llama-3-8b is no part of llama-3.1-8b."""
    return [word for part in _BETWEEN.split(name.casefold()) if (word := part.strip("."))]


def _is_part(own: list[str], words: list[str]) -> bool:
    """Whether words are one run of those of a name, or each of them is and no version is left out between them."""
    runs = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    if not own or "".join(own) in runs:
        return bool(own)
    versions = [word for word in words[:-1] if _VERSION.fullmatch(word) and word not in own]
    return not versions and runs.issuperset(own)  # llama-7b is no part of llama-2-7b
