"""What the formulas say of catalog entries: counted parameters, and warnings that are no errors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from perfgrid.catalog import Catalog, Entry
from perfgrid.catalog.files import Definition, Layer
from perfgrid.catalog.schema import BLOCKS
from perfgrid.engine import replay, resolve
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import Graph
from perfgrid.formulas import PARAMETERS, every_formula

from .catalog_effects import effects

PARAMETER_TOLERANCE = 0.01  # between a published and a counted number of parameters
PEAK_TOLERANCE = 0.05  # between a stated peak rate and cores x clock x operations
COUNTED = ("total_parameters", "parameters_per_token", "key_value_cache_width", "output_head_parameters")


@dataclass(frozen=True)
class Remark:
    """One remark on an entry or a reference; nothing is wrong enough to refuse it."""

    subject: str
    sentence: str


@cache
def _graph(**labels: str) -> Graph:
    registry = Registry.collect(PARAMETERS)
    arguments = {argument for f in registry.formulas.values() for argument in f.arguments}
    given = dict.fromkeys(arguments - set(registry.names()))
    return resolve(registry, COUNTED, given, labels={by: (label,) for by, label in labels.items()})


def counted_parameters(values: Mapping[str, Any]) -> dict[str, float]:
    """Total parameters, parameters per token and cache width of a model, from the stated shape."""
    graph = _graph(mixer=str(values["mixer"]), indexer=str(values["indexer"]))
    found = replay(graph, {name: values[name] for name in graph.leaves})
    return {name: float(found[name]) for name in COUNTED}


def remarks(catalog: Catalog, layer: Layer, built_in: bool = False) -> Iterator[Remark]:
    """Remarks on the entries and references that one set of files states, in their order.

    Values of a user without a source or without effect, memory in GB, published against counted parameters, peak rate
    against cores x clock x operations, estimates without a range, references that nothing cites (``built_in``: formulas
    may cite them too).
    """
    for kind, definitions in layer.definitions.items():
        for name, definition in definitions.items():
            entry = catalog.entry(kind, name)
            blocks = (definition.stated.get(block, {}) for block in BLOCKS)
            stated = {*definition.stated, *(q for block in blocks for q in block)}
            checks = (
                *(_unsourced(entry, definition), _parameters(entry), _peak(entry)),
                *(_capacity(entry, stated), _estimates(entry, stated)),
                *([] if built_in else [effects(catalog, entry)]),
            )
            yield from (Remark(f"{kind} {name}", sentence) for sentence in chain(*checks))
    cited = {source for table in catalog.tables.values() for e in table.values() for source in e.sources.values()}
    if built_in:
        cited |= {key.strip() for f in every_formula().formulas.values() for key in f.source.split(",")}
    for key in layer.references:
        if key not in cited:
            yield Remark(f"reference {key}", "no entry cites it" if not built_in else "no entry or formula cites it")


def _unsourced(entry: Entry, definition: Definition) -> Iterator[str]:
    fitted = {q for q, detail in entry.details.items() if detail.confidence == "calibrated"}  # its note says to what
    bare = [q for q, source in entry.sources.items() if source == definition.file and q not in fitted]
    if bare:
        yield f"no source is given for {', '.join(bare)}"


def _parameters(entry: Entry) -> Iterator[str]:
    if entry.kind != "model":
        return
    count = counted_parameters(entry.values)
    per_token, head = count["parameters_per_token"], count["output_head_parameters"]
    with_table = per_token if entry.values["tied_embeddings"] else per_token + head
    for quantity, what, candidates in (
        ("parameters", "parameters", (count["total_parameters"],)),
        ("active_parameters", "active parameters", (per_token, with_table, per_token - head)),
    ):
        published = entry.values[quantity]
        if not isinstance(published, float) or not published:
            continue
        nearest = min(candidates, key=lambda count, stated=published: abs(count - stated))
        detail = entry.details.get(quantity)
        low = detail.low if detail and detail.low is not None else published
        high = detail.high if detail and detail.high is not None else published
        if not low <= nearest <= high and abs(nearest / published - 1) > PARAMETER_TOLERANCE:
            yield (
                f"{published / 1e9:.4g} billion {what} are stated and {nearest / 1e9:.4g} billion counted "
                f"({nearest / published - 1:+.1%})"
            )


def _peak(entry: Entry) -> Iterator[str]:
    if entry.kind != "device":
        return
    cores, clock, operations, bf16, fp16 = (
        float(entry.values[q])  # pyright: ignore[reportArgumentType] (numbers, as the glossary says)
        for q in ("cores", "clock_frequency", "matrix_operations_per_clock", "peak_bf16_rate", "peak_fp16_rate")
    )
    product, peak = cores * clock * operations, bf16 or fp16
    if product and peak and abs(product / peak - 1) > PEAK_TOLERANCE:
        yield (
            f"the peak 16-bit rate {peak / 1e12:.4g} TFLOP/s differs from cores x clock x operations per clock, "
            f"{product / 1e12:.4g} TFLOP/s ({product / peak - 1:+.1%})"
        )


def _capacity(entry: Entry, stated: Collection[str]) -> Iterator[str]:
    """Data sheets print powers of two as GB."""
    if entry.kind != "device" or "hbm_capacity" not in stated:
        return
    capacity = float(entry.values["hbm_capacity"])  # pyright: ignore[reportArgumentType] (a number by the glossary)
    if capacity and capacity % 1e9 == 0 and capacity % 2**30:
        whole, exact = f"{capacity / 1e9:.0f}", f"{capacity / 2**30:.4g} GiB"
        yield f'hbm_capacity is {whole} GB = {exact}: where a data sheet says {whole} GB, state "{whole} GiB"'


def _estimates(entry: Entry, stated: Collection[str]) -> Iterator[str]:
    """Only what the file states itself: what it inherits is remarked on where it stands."""
    estimates = {q: d for q, d in entry.details.items() if d.confidence == "estimate" and q in stated}
    bare = [q for q, d in estimates.items() if isinstance(entry.values[q], float) and (d.low is None or d.high is None)]
    if bare:
        yield f"estimates without a range (low, high): {', '.join(bare)}"
