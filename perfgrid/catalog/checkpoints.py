"""Formats of weights as published: what ``quantization_config`` says, as bytes of a weight by part of the model.

A checkpoint names a format and the modules that have it, or that do not. Each module of each layer is looked up, and a
part of the model takes the mean of its modules over all layers, by their weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfgrid.engine.errors import PerfgridError

from .modules import PARTS, modules_of, outside_modules
from .number_formats import NUMBER_FORMATS, SIXTEEN_BITS
from .quantisation import Scheme, scheme_of
from .reading import from_json, read_text
from .schema import Entry, Value, Variable

BESIDE = "hf_quant_config.json"  # of ModelOpt, in the folder of a config.json
INDEX = "model.safetensors.index.json"  # of the files of weights, beside a config.json
PUBLISHED = "published"  # word of ``weight_precision``: each part of a model as its checkpoint holds it
_WORDS = {"ffn": "dense blocks", "shared": "shared experts", "mixer": "recurrent layers"}  # of parts, in texts
NEARLY = 0.01  # sizes that differ by less count as one format


@dataclass(frozen=True)
class Weights:
    """The weights of a model by format: mean bytes of a weight by part, and elements of each part by format."""

    sizes: Mapping[str, float]
    elements: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by part and word of a format

    @property
    def most(self) -> str:
        """The word of the format that most weights have."""
        total: dict[str, float] = defaultdict(float)
        for by_format in self.elements.values():
            for word, elements in by_format.items():
                total[word] += elements
        return max(total, key=lambda word: total[word])


def published(
    about: Any, found: Mapping[str, Value], layers: Iterable[tuple[str, ...]], variables: Mapping[str, Variable],
    where: str,
) -> dict[str, Value]:  # fmt: skip
    """The quantities of a model that its ``quantization_config`` states, from those of its shape.

    ``layers``: the parts of each layer, in order. Raises PerfgridError for methods and formats that are not supported,
    with the key and the nearest legal names.
    """
    if about is None:
        return {}
    if not isinstance(about, Mapping):
        raise PerfgridError(f"{where} must be a table, found {type(about).__name__}")
    scheme = scheme_of(about, where)
    usual = {v.name: v.default_value for v in variables.values() if v.of == "model" and v.default_value is not None}
    weights = _weights(scheme, {**usual, **found}, layers)
    stated: dict[str, Value] = {}
    if weights.most != SIXTEEN_BITS.word or any(size < SIXTEEN_BITS.element_size for size in weights.sizes.values()):
        stated["published_precision"] = _code(variables, "published_precision", weights.most)
        stated |= {PARTS[part]: float(f"{size:.9g}") for part, size in weights.sizes.items()}
    if scheme.kept != "bf16":
        stated["published_kv_precision"] = _code(variables, "published_kv_precision", scheme.kept)
    return stated


def _code(variables: Mapping[str, Variable], quantity: str, word: str) -> float:
    return float(variables[quantity].codes.index(word))


def _weights(scheme: Scheme, found: Mapping[str, Value], layers: Iterable[tuple[str, ...]]) -> Weights:
    """Every module of every layer in its format, summed by part."""
    size: dict[str, float] = defaultdict(float)
    elements: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    of_part = {part: modules_of(part, found) for part in {part for layer in layers for part in layer}}
    modules = [(number, m) for number, layer in enumerate(layers) for part in layer for m in of_part[part]]
    for number, module in [*modules, *((0, module) for module in outside_modules(found))]:
        form = scheme.format_of(module, number)
        size[module.part] += module.elements * form.element_size
        elements[module.part][form.word] += module.elements
    sizes = {part: size[part] / whole for part in PARTS if (whole := sum(elements[part].values()))}
    return Weights(sizes, elements)


# ---- files and entries ----------------------------------------------------------------------------------------------


def with_formats(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A configuration with what the file beside it says of formats. PerfgridError where both say different things."""
    beside = path.with_name(BESIDE)
    if not beside.is_file() or beside == path:
        return dict(config)
    held = from_json(read_text(beside), f"{beside}: ")
    about = held.get("quantization", held) if isinstance(held, Mapping) else None
    if not isinstance(about, Mapping):
        raise PerfgridError(f"{beside}: must hold one JSON object with quantization, found {type(about).__name__}")
    stated = config.get("quantization_config")
    if not isinstance(stated, Mapping):
        return {**config, "quantization_config": {"quant_method": "modelopt", **about}}
    for key in ("quant_algo", "kv_cache_quant_algo"):
        if None not in (stated.get(key), about.get(key)) and stated[key] != about[key]:
            raise PerfgridError(
                f"{path} and {beside.name} contradict each other: {key} {stated[key]!r}, {about[key]!r}"
            )
    return {**config, "quantization_config": {"kv_cache_quant_algo": about.get("kv_cache_quant_algo"), **stated}}


def stored_size(path: Path) -> float | None:
    """Bytes of all weights in the files beside a configuration, as their index states it; None where there is none."""
    index = path.with_name(INDEX)
    if not index.is_file():
        return None
    held = from_json(read_text(index), f"{index}: ")
    about = held.get("metadata") if isinstance(held, Mapping) else None
    size = about.get("total_size") if isinstance(about, Mapping) else None
    if size is not None and (isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < 1e18):
        raise PerfgridError(f"{index}: metadata.total_size must be a number of bytes, found {str(size)!r:.60}")
    return None if size is None else float(size)


def weight_size(values: Mapping[str, Any], parameters: float) -> float:
    """Bytes of all weights of a model with so many parameters: those of no part, such as norms, in 16 bits."""
    layers = values["layers"]
    sparse = layers - values["ffn_free_layers"] - values["dense_layers"] if values["experts"] else 0.0
    counts = {"attention": layers - values["attention_free_layers"], "mixer": values["mixer_layers"]}
    counts |= {"indexer": values["index_layers"], "experts": sparse, "shared": sparse}
    counts["ffn"] = layers - values["ffn_free_layers"] - sparse
    elements = {part: n * sum(m.elements for m in modules_of(part, values)) for part, n in counts.items() if n}
    elements |= {module.part: module.elements for module in outside_modules(values)}
    if values["tied_embeddings"]:
        del elements["head"]
    wide = SIXTEEN_BITS.element_size
    return parameters * wide - sum(n * (wide - values[PARTS[part]]) for part, n in elements.items())


def stored_weights(model: Entry, variables: Mapping[str, Variable]) -> str:
    """The word of ``weight_precision`` for weights as published: a format, or `PUBLISHED` where parts differ."""
    sizes = (model.values.get(quantity) for quantity in PARTS.values())
    if any(size not in (None, SIXTEEN_BITS.element_size) for size in sizes):
        return PUBLISHED
    return str(variables["published_precision"].word(model.values["published_precision"]))


def kept_cache(model: Entry, variables: Mapping[str, Variable]) -> str:
    """The word of ``kv_precision`` for the cache that a published checkpoint asks for."""
    return str(variables["published_kv_precision"].word(model.values["published_kv_precision"]))


def formats_text(model: Entry, variables: Mapping[str, Variable]) -> str:
    """The formats of weights as published, in words: that of most weights, and those of parts that differ from it."""
    word = str(variables["published_precision"].word(model.values["published_precision"]))
    if stored_weights(model, variables) != PUBLISHED:
        return word
    differing: dict[str, list[str]] = defaultdict(list)
    for part in _present(model):
        size = float(str(model.values[PARTS[part]]))
        if abs(size / NUMBER_FORMATS[word].element_size - 1) > NEARLY:
            differing[f"{8 * size:.3g} bits"].append(_WORDS.get(part, part))
    others = (f"{', '.join(parts)} in {size}" for size, parts in differing.items())
    return f"{word} ({'; '.join(others)})" if differing else word


def _present(model: Entry) -> list[str]:
    """The parts that a model has."""
    values = {name: value for name, value in model.values.items() if isinstance(value, float)}
    marks = {"mixer": "mixer_layers", "indexer": "index_layers", "shared": "shared_experts", "experts": "experts"}
    dense = not values.get("experts") or values.get("dense_layers")
    return [part for part in PARTS if dense or part != "ffn" if part not in marks or values.get(marks[part])]
