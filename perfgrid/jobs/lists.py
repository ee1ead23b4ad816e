"""Values of keys that are lists: devices that are named one by one, and modules of a model that have adapters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from perfgrid.engine.errors import PerfgridError, shortened

LONGEST_LAYOUT = 4000  # characters, repeated groups written out
_LAYOUT = re.compile(r"[A-Za-z|()*,\d\s]+")
_REPEATED = re.compile(r"\(([^()]*)\)(?:\*(\d{1,4}))?|(\|)\*(\d{1,4})")
EVERY = {"all", "all-linear", "all_linear", "linear", "layers."}
JOINT = {"query_key_value", "c_attn", "qkv_proj", "W_pack", "Wqkv", "wqkv", "qkv", "attn_qkv", "linear_qkv"}
SINGLE = {"q_proj", "k_proj", "v_proj"}
OUTPUT = {"o_proj", "attn.c_proj", "attention.dense", "attention.wo", "out_proj", "linear_proj"}
BLOCK = {
    *("gate_proj", "up_proj", "down_proj", "fc1", "fc2", "w1", "w2", "w3", "c_fc", "mlp.c_proj", "gate_up_proj"),
    *("dense_h_to_4h", "dense_4h_to_h", "linear_fc1", "linear_fc2"),
}
WHOLE = ({"gate_proj", "up_proj", "down_proj"}, {"gate_up_proj", "down_proj"}, {"fc1", "fc2"})
WHOLE += (
    {"dense_h_to_4h", "dense_4h_to_h"},
    {"linear_fc1", "linear_fc2"},
    {"w1", "w2", "w3"},
    {"w1", "w2", "mlp.c_proj"},
)


def count_of(text: str, where: str) -> tuple[int, str]:
    """How many entries a list such as ``0,1,2,3`` has."""
    return len([part for part in text.split(",") if part.strip()]), ""


def slots_of(text: str, where: str) -> tuple[int, str]:
    """The devices of hosts, as DeepSpeed's launcher takes them: ``host:0,1@other:0,1``."""
    hosts = [host.partition(":") for host in text.split("@")]
    if not all(slots for _, _, slots in hosts):
        raise PerfgridError(f"{where} names hosts without their devices, found {shortened(text, 60)!r}: give --devices")
    return sum(count_of(slots, where)[0] for *_, slots in hosts), ""


def modules_of(text: str, where: str) -> tuple[str, str]:
    """The matrices that have adapters as a word of ``lora_targets``, and what that word leaves out or adds.

    PerfgridError for modules that are not known, and for a choice that no word stands for.
    """
    names = [name for name in re.split(r"[\s,\[\]'\"|()]+", text) if name]
    if EVERY & {*names}:
        return "all", ""
    short = {name if name in OUTPUT | BLOCK else name.rpartition(".")[2] for name in names}
    unknown = sorted(short - JOINT - SINGLE - OUTPUT - BLOCK)
    if unknown or not short:
        raise PerfgridError(
            f"{where} names modules that are not known: {shortened(', '.join(unknown), 80)}: "
            "known are all, q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj and names like these"
        )
    inputs = bool(short & JOINT) or short >= SINGLE
    if not short & (JOINT | SINGLE):
        raise PerfgridError(
            f"{where} has adapters beside the projection to queries, keys and values only: not modelled"
        )
    if short & BLOCK:
        exact = inputs and bool(short & OUTPUT) and any(short & BLOCK == one for one in WHOLE)
        return "all", "" if exact else f"read as all matrices of a layer, which are more than {text}"
    if short & OUTPUT:
        return "attention", "" if inputs else f"read as all matrices of attention, which are more than {text}"
    return "qkv", "" if inputs else f"read as the projections to queries, keys and values, which are more than {text}"


def stages_of(text: str, where: str) -> tuple[int, str]:
    """How many stages a layout of Megatron-LM has, such as ``Et*4|(t|)*3L``: bars part them, groups may be repeated.

    Raises PerfgridError for a text that is not a layout.
    """
    left = text.strip("\"' ")
    if not _LAYOUT.fullmatch(left) or len(left) > LONGEST_LAYOUT:
        raise PerfgridError(f"{where} needs stages with | between, found {shortened(text, 60)!r}")
    while (found := _REPEATED.search(left)) is not None and len(left) <= LONGEST_LAYOUT:
        bars = (found[1] or found[3] or "").count("|") * int(found[2] or found[4] or 1)
        left = left[: found.start()] + "|" * min(bars, LONGEST_LAYOUT) + left[found.end() :]
    if len(left) > LONGEST_LAYOUT or "(" in left or ")" in left:
        raise PerfgridError(f"{where} needs stages with | between, found {shortened(text, 60)!r}")
    return left.count("|") + 1, ""


LISTS: Mapping[str, Callable[[str, str], tuple[int | str, str]]] = {
    "count": count_of,
    "slots": slots_of,
    "modules": modules_of,
    "stages": stages_of,
}
