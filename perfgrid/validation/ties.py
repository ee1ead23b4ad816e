"""How far two measured steps of one source lie from the ratio of their predictions, by what differs between them.

Pairs of one source share its machine, its software and often a record: what counts is the number of sources. Each of
them weighs alike, and one more than there are is counted, of which nothing is known (hierarchical conformal prediction,
lee2023hierarchical): with fewer than nine sources no value is known to hold nine of ten pairs of the next one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from perfgrid.analysis.prediction_intervals import SIZE, differing, scaled, tie_margin
from perfgrid.catalog import Catalog, load_catalog
from perfgrid.formulas.training.error import CENTRAL_90

from .scatter import SHARE, Pair, errors, pairs
from .validate import Prediction

MIDDLE = 0.6745  # standard deviations within which half of a normal distribution lies
SCALED, FURTHER = "devices and batch, up to tenfold", "devices and batch, more"  # the first tell the scaling_error
LAYOUT, AGAIN = "layout", "nothing (measured again)"
KINDS = {  # quantities of a study by what they are about; the others of its layout and workload are LAYOUT
    **dict.fromkeys(
        ("recompute", "recompute_norms", "recompute_activation_function", "recompute_latents"), "recomputation"
    ),
    **dict.fromkeys(("precision", "scaling"), "precision"),
    **dict.fromkeys(("sequence_length", "document_length", "document_variation", "learned_positions"), "length"),
    **dict.fromkeys(("lora_rank", "lora_targets"), "model"),
}
TABLES = {"model": "model", "device": "machine", "topology": "machine", "software": "software"}
SINGLE = (SCALED, FURTHER, LAYOUT, "recomputation", "length", "precision", "model", "machine", "software")
ROWS = {  # what may differ; at least one of it does
    **{name: frozenset({name}) for name in SINGLE},
    "layout, devices and batch": frozenset({LAYOUT, SCALED, FURTHER}),
    "any of these": frozenset(SINGLE),
}


def kinds(pair: Pair, catalog: Catalog) -> frozenset[str]:
    """What differs between two records, by KINDS and TABLES; sizes by how far they are apart."""
    a, b = pair.intervals
    names = differing(a, b)
    near = scaled(*(replace(x, design={n: v for n, v in x.design.items() if n in SIZE}) for x in (a, b)))
    sizes = {SCALED if near else FURTHER} if names & {"devices", "global_batch"} else set[str]()
    return frozenset(sizes | {_kind(catalog, name) for name in names - SIZE})


def _kind(catalog: Catalog, name: str) -> str:
    """What an entry of a table or a quantity is about."""
    table = name if name in TABLES else str(catalog.variables[name].of)
    return KINDS.get(name) or TABLES.get(table, LAYOUT)


def enough(by_source: Sequence[np.ndarray]) -> float | None:
    """The least value that holds SHARE of the pairs of a further source; None where there are too few sources."""
    count = len(by_source)
    wanted = SHARE * (count + 1) - 1e-9  # sources that hold all of theirs
    if wanted > count:
        return None
    weights = np.concatenate([np.full(len(values), 1 / len(values)) for values in by_source])
    return float(np.quantile(np.concatenate(by_source), wanted / count, weights=weights, method="inverted_cdf"))


@dataclass(frozen=True)
class Scale:
    """How pairs scatter that differ in the same; deviations are of the logarithm of the ratio of two steps."""

    pairs: int
    sources: int
    usual: float  # median of the sources: deviation by half of their pairs
    enough: float | None  # beyond the assumptions, for nine of ten pairs of a further source
    margin: float  # median of the sources: what ties take
    inside: float  # pairs that this holds, mean of the sources
    left_out: float | None  # pairs that `enough` of the other sources holds, mean of the sources


def scales(
    predictions: Sequence[Prediction], calibrations: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The scatter of pairs of predicted steps by what differs, as ROWS says, as plain data (`Scale`)."""
    rows = [p for p in predictions if p.interval is not None and p.predicted is not None]
    catalog, by_kinds = load_catalog(), defaultdict[frozenset[str], list[Pair]](list)
    for pair in pairs(rows, errors(rows, calibrations)):
        by_kinds[kinds(pair, catalog)].append(pair)
    told = {}
    for name, allowed in {AGAIN: frozenset[str](), **ROWS}.items():
        members = defaultdict[str, list[Pair]](list)
        for own, found in by_kinds.items():
            for pair in found if own <= allowed and bool(own) == bool(allowed) else ():
                members[pair.a.record.group].append(pair)
        if members:
            told[name] = asdict(_scale(list(members.values())))
    return told


def _scale(by_source: Sequence[Sequence[Pair]]) -> Scale:
    left, apart = ([np.array([getattr(p, name) for p in of]) for of in by_source] for name in ("left", "distance"))
    margins = [np.log1p([tie_margin(*p.intervals) for p in of]) for of in by_source]
    others = [enough([*left[:i], *left[i + 1 :]]) for i in range(len(left))]
    held = [float(np.mean(own <= known)) for own, known in zip(left, others, strict=True) if known is not None]
    return Scale(
        pairs=sum(map(len, left)),
        sources=len(left),
        usual=float(np.median([np.median(np.abs(d)) for d in apart])) / MIDDLE,
        enough=enough(left),
        margin=float(np.median([np.median(m) for m in margins])) / CENTRAL_90,
        inside=float(np.mean([np.mean(np.abs(d) <= m) for d, m in zip(apart, margins, strict=True)])),
        left_out=float(np.mean(held)) if held else None,
    )
