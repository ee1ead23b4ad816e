"""What ``quantization_config`` says, by the method that it names: which modules have which number format.

A method reads its keys into a `Scheme`; formats are those of `number_formats`, with blocks of the stated size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from perfgrid.engine.errors import PerfgridError, nearest, printable

from .modules import PARTS, Module, Patterns
from .number_formats import NUMBER_FORMATS, SIXTEEN_BITS, NumberFormat

LARGEST_BLOCK = 2**20  # elements of a row, or rows, that share a scale
NORMAL_FLOAT = NumberFormat("int4", 4, 64, 32)  # NF4 and FP4 of bitsandbytes, as in QLoRA
_BLOCKS = NumberFormat("fp8", 8, 128 * 128, 32)
_ALGORITHMS = {  # of ModelOpt and TensorRT-LLM
    **dict.fromkeys(("FP8", "FP8_PER_CHANNEL_PER_TOKEN"), NUMBER_FORMATS["fp8"]),
    **dict.fromkeys(("FP8_PB_WO", "FP8_BLOCK_SCALES"), _BLOCKS),
    **dict.fromkeys(("NVFP4", "W4A16_NVFP4", "NVFP4_AWQ", "W4A8_NVFP4_FP8"), NUMBER_FORMATS["fp4"]),
    **dict.fromkeys(("MXFP4", "W4A8_MXFP4_FP8", "W4A8_MXFP4_MXFP8", "W4A16_MXFP4"), NUMBER_FORMATS["mxfp4"]),
    "MXFP8": NumberFormat("fp8", 8, 32, 8),
    **dict.fromkeys(("W4A16", "W4A16_AWQ", "W4A8_AWQ", "W4A16_GPTQ"), NUMBER_FORMATS["int4"]),
    **dict.fromkeys(("INT8", "W8A16", "W8A16_GPTQ", "W8A8_SQ_PER_CHANNEL"), NUMBER_FORMATS["int8"]),
}
_CACHES = {"FP8": "fp8", "NVFP4": "fp4", "INT8": "int8"}  # formats of the cache by the words of ModelOpt


@dataclass(frozen=True)
class Scheme:
    """Which modules have which format: what is left out first, then those named, then all others."""

    everything: NumberFormat | None = None
    named: tuple[tuple[Patterns, NumberFormat], ...] = ()
    ignored: tuple[Patterns, ...] = ()
    only: frozenset[str] = frozenset(PARTS)  # parts of the model that ``everything`` is said of
    head: bool = False  # whether the output head is a module like others
    kept: str = "bf16"  # format of the cache

    def format_of(self, module: Module, layer: int) -> NumberFormat:
        """The format of a module; 16 bits where it is not quantised."""
        if any(patterns.name(module, layer) for patterns in self.ignored):
            return SIXTEEN_BITS
        for patterns, form in self.named:
            if patterns.name(module, layer):
                return form
        apart = module.part == "embedding" or (module.part == "head" and not self.head)
        return SIXTEEN_BITS if apart or module.part not in self.only else self.everything or SIXTEEN_BITS


def scheme_of(about: Mapping[str, Any], where: str) -> Scheme:
    """Which modules have which format, by the method that a checkpoint names."""
    method = about.get("quant_method", "modelopt" if "quant_algo" in about else None)
    if not isinstance(method, str) or method not in _METHODS:
        found, expressed = printable(str(method)[:60]), ", ".join(_METHODS)
        raise PerfgridError(
            f"{where}.quant_method = {found!r} is not supported{nearest(found, _METHODS)}; supported are {expressed}"
        )
    left_out = [key for key in _LEFT_OUT if about.get(key) is not None]
    ignored = tuple(Patterns(about[key], f"{where}.{key}") for key in left_out)
    scheme = _METHODS[method](about, where)
    return replace(scheme, ignored=(*ignored, *scheme.ignored), kept=_kept(about, where))


_LEFT_OUT = (
    "ignore",
    "modules_to_not_convert",
    "ignored_layers",
    "exclude_modules",
    "llm_int8_skip_modules",
    "exclude",
)


def _kept(about: Mapping[str, Any], where: str) -> str:
    """The format of the cache that a checkpoint asks for."""
    if isinstance(scheme := about.get("kv_cache_scheme"), Mapping):
        return _spec(scheme, f"{where}.kv_cache_scheme").word
    algorithm = about.get("kv_cache_quant_algo")
    if algorithm is not None and str(algorithm).upper() not in (*_CACHES, "NONE"):
        raise PerfgridError(
            f"{where}.kv_cache_quant_algo = {printable(str(algorithm))[:60]!r} is not supported, only "
            f"{', '.join(_CACHES)}{nearest(str(algorithm)[:60], _CACHES)}"
        )
    return _CACHES.get(str(algorithm).upper(), "bf16")


def _whole(about: Mapping[str, Any], key: str, where: str, missing: int) -> int:
    """A number of bits or elements; -1 and null stand for all elements of a row."""
    value = about.get(key)
    if value is None:
        return missing
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1 <= value <= LARGEST_BLOCK or value % 1:
        raise PerfgridError(f"{where}.{key} must be a whole number, found {str(value)!r:.60}")
    return max(int(value), 0)


def integers(bits: int, group: int, zero_point: bool, where: str) -> NumberFormat:
    """Integers in groups with a 16-bit scale, and a zero point of as many bits as an element; 0: one of a row."""
    if not 2 <= bits <= 8:
        raise PerfgridError(f"{where} has integers of {bits} bits, which are not supported, only 2 to 8")
    return NumberFormat("int4" if bits <= 4 else "int8", bits, group, 16, bits if zero_point else 0)


def _spec(about: Mapping[str, Any], where: str, method: str = "") -> NumberFormat:
    """The format of compressed tensors: bits, type, and what shares a scale."""
    bits, group = _whole(about, "num_bits", where, 8), _whole(about, "group_size", where, 0)
    if about.get("type", "int") not in ("int", "float"):
        raise PerfgridError(f"{where}.type = {str(about.get('type'))!r:.60} is not supported, only 'int' and 'float'")
    if about.get("type", "int") == "int":
        return integers(bits, group, about.get("symmetric") is False, where)
    if bits == 4:
        exponents = "mxfp4" in method or "uint8" in str(about.get("scale_dtype")) or group == 32
        return NUMBER_FORMATS["mxfp4" if exponents else "fp4"]
    if bits != 8:
        raise PerfgridError(f"{where} has floating point of {bits} bits, which is not supported, only 4 and 8")
    block = about.get("block_structure")
    return (
        NumberFormat("fp8", 8, _area(block, where), 32) if block else NumberFormat("fp8", 8, group, 8 if group else 0)
    )


def _area(block: Any, where: str) -> int:
    """The elements of a block of rows and columns."""
    if (
        not isinstance(block, list)
        or len(block) != 2
        or any(not isinstance(n, int) or not 0 < n <= LARGEST_BLOCK for n in block)
    ):
        raise PerfgridError(f"{where}: a block of weights is two whole numbers, found {str(block)!r:.60}")
    return block[0] * block[1]


def _fp8(about: Mapping[str, Any], where: str) -> Scheme:
    block = about.get("weight_block_size")
    return Scheme(NumberFormat("fp8", 8, _area(block, where), 32) if block else NUMBER_FORMATS["fp8"])


def _compressed(about: Mapping[str, Any], where: str) -> Scheme:
    groups = about.get("config_groups")
    if not isinstance(groups, Mapping):
        raise PerfgridError(f"{where}.config_groups must be a table, found {type(groups).__name__}")
    everything, named = None, []
    for name, group in groups.items():
        place = f"{where}.config_groups.{printable(str(name))}"
        weights, targets = (group.get(key) for key in ("weights", "targets")) if isinstance(group, Mapping) else (0, 0)
        if weights is None:
            continue
        if not isinstance(weights, Mapping) or not isinstance(targets, list):
            raise PerfgridError(f"{place} must be a table with weights and targets")
        form = _spec(weights, f"{place}.weights", str(group.get("format") or about.get("format")))
        if "Linear" in targets:
            everything = form
        if others := [target for target in targets if target not in ("Linear", "Embedding")]:
            named.append((Patterns(others, f"{place}.targets"), form))
        if "Embedding" in targets:
            named.append((Patterns(["embed_tokens", "embeddings"], place), form))
    return Scheme(everything, tuple(named), head=True)


def _modelopt(about: Mapping[str, Any], where: str) -> Scheme:
    algorithm = str(about.get("quant_algo") or "").upper()
    if not algorithm:  # of the cache alone
        return Scheme()
    if algorithm != "MIXED_PRECISION":
        return Scheme(_algorithm(about, where), head=True)
    listed = about.get("quantized_layers")
    if not isinstance(listed, Mapping):
        raise PerfgridError(f"{where} has mixed precision, but no table quantized_layers")
    by_format: dict[NumberFormat, list[str]] = defaultdict(list)
    for name, own in listed.items():
        if not isinstance(own, Mapping):
            raise PerfgridError(f"{where}.quantized_layers: {printable(str(name))[:80]} must be a table")
        by_format[_algorithm(own, f"{where}.quantized_layers")].append(str(name))
    return Scheme(named=tuple((Patterns(names, where), form) for form, names in by_format.items()))


def _algorithm(about: Mapping[str, Any], where: str) -> NumberFormat:
    """The format of an algorithm of ModelOpt, in groups of the stated size where it is one of integers."""
    word = str(about.get("quant_algo") or "").upper()
    if word not in _ALGORITHMS:
        expressed = ", ".join(_ALGORITHMS)
        raise PerfgridError(f"{where}.quant_algo = {printable(word)[:60]!r} is not supported, only {expressed}")
    form = _ALGORITHMS[word]
    group = _whole(about, "group_size", where, form.block)
    return replace(form, block=group) if form.word == "int4" else form


def _awq(about: Mapping[str, Any], where: str) -> Scheme:
    bits = _whole(about, "bits" if "bits" in about else "w_bit", where, 4)
    group = _whole(about, "group_size" if "group_size" in about else "q_group_size", where, 128)
    return Scheme(integers(bits, group, about.get("zero_point", True) is not False, where))


def _gptq(about: Mapping[str, Any], where: str) -> Scheme:
    """GPTQ and those that write as it does: zero points are stored, also where they are all alike."""
    bits, group = _whole(about, "bits", where, 4), _whole(about, "group_size", where, 128)
    dynamic = about.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise PerfgridError(f"{where}.dynamic must be a table, found {type(dynamic).__name__}")
    named, left_out = [], []
    for pattern, own in dynamic.items():
        sign, text = (pattern[:2], pattern[2:]) if pattern[:2] in ("+:", "-:") else ("+:", pattern)
        place = f"{where}.dynamic"
        if sign == "-:":
            left_out.append(f"re:{text}")
        elif isinstance(own, Mapping):
            held = (_whole(own, "bits", place, bits), _whole(own, "group_size", place, group))
            named.append((Patterns([f"re:{text}"], place), integers(*held, True, place)))
    ignored = (Patterns(left_out, f"{where}.dynamic"),) if left_out else ()
    return Scheme(integers(bits, group, True, where), tuple(named), ignored, head=about.get("lm_head") is True)


def _bitsandbytes(about: Mapping[str, Any], where: str) -> Scheme:
    if about.get("load_in_8bit", about.get("_load_in_8bit")):
        return Scheme(NUMBER_FORMATS["int8"])
    double = about.get("bnb_4bit_use_double_quant") is True  # scales in 8 bits, in groups of 256
    return Scheme(replace(NORMAL_FLOAT, scale_bits=8 + 32 / 256) if double else NORMAL_FLOAT)


def _quark(about: Mapping[str, Any], where: str) -> Scheme:
    """Quark of AMD: one format for all layers, others by name."""

    def form(own: Any, place: str) -> NumberFormat | None:
        weight = own.get("weight") if isinstance(own, Mapping) else None
        if not isinstance(weight, Mapping):
            return None
        word, group = str(weight.get("dtype")), _whole(weight, "group_size", place, 0)
        if word.startswith("fp8"):
            return NUMBER_FORMATS["fp8"]
        if word.startswith("fp4"):
            return NUMBER_FORMATS["mxfp4" if group in (0, 32) else "fp4"]
        if word.startswith(("int", "uint")) and (bits := "".join(c for c in word if c.isdecimal())):
            return integers(int(bits[:2]), group, word.startswith("uint"), place)
        raise PerfgridError(f"{place}.weight.dtype = {printable(word)[:60]!r} is not supported, only fp8, fp4, int")

    everything = form(about.get("global_quant_config"), f"{where}.global_quant_config")
    listed = about.get("layer_quant_config") or {}
    if not isinstance(listed, Mapping):
        raise PerfgridError(f"{where}.layer_quant_config must be a table, found {type(listed).__name__}")
    place = f"{where}.layer_quant_config"
    named = [(Patterns([str(name)], place), form(own, place) or SIXTEEN_BITS) for name, own in listed.items()]
    return Scheme(everything, tuple(named))


_METHODS: Mapping[str, Callable[[Mapping[str, Any], str], Scheme]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": lambda about, where: Scheme(NUMBER_FORMATS["mxfp4"], only=frozenset({"experts"})),
    "compressed-tensors": _compressed,
    **dict.fromkeys(("modelopt", "modelopt_fp4", "modelopt_mixed"), _modelopt),
    "awq": _awq,
    **dict.fromkeys(("gptq", "auto-round"), _gptq),
    "bitsandbytes": _bitsandbytes,
    "quark": _quark,
}
