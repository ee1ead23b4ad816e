"""Deviation of the ratio of two measured steps from that of their predictions, by what differs.

The steps are of one release of a source. Pairs of one source share machine, software and often a record, so sources
have equal weight, and one source more than there are is counted (hierarchical conformal prediction,
lee2023hierarchical): nine sources are needed for a value that covers nine of ten pairs of a further source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from perfgrid.analysis.prediction_intervals import SIZE, differing, of_one_order
from perfgrid.catalog import Catalog, load_catalog
from perfgrid.formulas.training.error import CENTRAL_90
from perfgrid.validation.groups import Prediction

from .scatter import SHARE, Pair, errors, pairs

MIDDLE = 0.6745  # standard deviations within which half of a normal distribution lies
SCALED, FURTHER = "devices and batch, up to tenfold", "devices and batch, more"  # the first gives the scaling_error
LAYOUT, AGAIN = "layout", "nothing (measured again)"
KINDS = {  # study quantities by subject; all others of layout and workload are LAYOUT
    **dict.fromkeys(
        ("recompute", "recompute_norms", "recompute_activation_function", "recompute_latents"), "recomputation"
    ),
    **dict.fromkeys(("precision", "scaling"), "precision"),
    **dict.fromkeys(("sequence_length", "document_length", "document_variation", "learned_positions"), "length"),
    **dict.fromkeys(("lora_rank", "lora_targets"), "model"),
}
TABLES = {"model": "model", "device": "machine", "topology": "machine", "software": "software"}
SINGLE = (SCALED, FURTHER, LAYOUT, "recomputation", "length", "precision", "model", "machine", "software")
ROWS = {  # what may differ; at least one of them does
    **{name: frozenset({name}) for name in SINGLE},
    "layout, devices and batch": frozenset({LAYOUT, SCALED, FURTHER}),
    "any of these": frozenset(SINGLE),
}


def kinds(pair: Pair, catalog: Catalog) -> frozenset[str]:
    """What differs between two records, by KINDS and TABLES; sizes by how far they are apart."""
    a, b = pair.intervals
    names = differing(a, b)
    sizes = {SCALED if of_one_order(a, b, names) else FURTHER} if names & {"devices", "global_batch"} else set[str]()
    return frozenset(sizes | {_kind(catalog, name) for name in names - SIZE})


def _kind(catalog: Catalog, name: str) -> str:
    """The subject of a catalog table or quantity."""
    table = name if name in TABLES else str(catalog.variables[name].of)
    return KINDS.get(name) or TABLES.get(table, LAYOUT)


def enough(by_source: Sequence[np.ndarray]) -> float | None:
    """The smallest value that covers SHARE of the pairs of a further source; None with too few sources."""
    count = len(by_source)
    wanted = SHARE * (count + 1) - 1e-9  # sources that hold all of theirs
    if wanted > count:
        return None
    weights = np.concatenate([np.full(len(values), 1 / len(values)) for values in by_source])
    return float(np.quantile(np.concatenate(by_source), wanted / count, weights=weights, method="inverted_cdf"))


@dataclass(frozen=True)
class Scale:
    """Scatter of pairs with the same differences; deviations are of the logarithm of the ratio of two steps."""

    pairs: int
    sources: int
    usual: float  # median of the sources: deviation exceeded by half of their pairs
    enough: float | None  # beyond the assumptions, for nine of ten pairs of a further source
    margin: float  # median of the sources: tie margin
    inside: float  # share of pairs within the margin, mean of the sources
    left_out: float | None  # share within `enough` of the other sources, mean of the sources


def scales(
    predictions: Sequence[Prediction], calibrations: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The scatter of pairs of predicted steps by what differs, as ROWS says, as plain data (`Scale`)."""
    rows = [p for p in predictions if p.interval is not None and p.predicted is not None]
    catalog, by_kinds = load_catalog(), defaultdict[frozenset[str], list[Pair]](list)
    for pair in pairs(rows, errors(rows, calibrations)):
        if pair.a.record.source.title != pair.b.record.source.title:
            continue  # of several releases
        by_kinds[kinds(pair, catalog)].append(pair)
    by_name = {}
    for name, allowed in {AGAIN: frozenset[str](), **ROWS}.items():
        members = defaultdict[str, list[Pair]](list)
        for own, found in by_kinds.items():
            for pair in found if own <= allowed and bool(own) == bool(allowed) else ():
                members[pair.a.record.group].append(pair)
        if members:
            by_name[name] = asdict(_scale(list(members.values())))
    return by_name


def _scale(by_source: Sequence[Sequence[Pair]]) -> Scale:
    left, apart = ([np.array([getattr(p, name) for p in of]) for of in by_source] for name in ("left", "distance"))
    margins = [np.log1p([p.margin for p in of]) for of in by_source]
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
