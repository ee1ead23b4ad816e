"""The field's terms for quantities, as screens, tables and pictures print them."""

from __future__ import annotations

from collections.abc import Iterable

MFU = "causal_model_flops_utilization"
COUNTS = ("model_flops_utilization", "hardware_flops_utilization")  # the same of FLOPs that are counted otherwise
UTILIZATIONS = {  # of published definitions the first counts what has to be computed, and is called MFU everywhere
    MFU: "MFU",
    COUNTS[0]: "PaLM MFU",
    COUNTS[1]: "HFU",
}
TERMS = UTILIZATIONS | {
    "time_to_first_token": "TTFT",
    "time_per_output_token": "TPOT",
}
_COUNTED = {MFU: "causal pairs only", COUNTS[0]: "all pairs", COUNTS[1]: "also recomputation"}


def counted(names: Iterable[str], peak: str = "") -> str:
    """What the utilizations among some quantities count, and of which ``peak`` they are shares; empty without any."""
    known = [name for name in names if name in UTILIZATIONS]
    told = ", ".join(f"{UTILIZATIONS[name]}{' counts' * (i == 0)} {_COUNTED[name]}" for i, name in enumerate(known))
    of = f"; shares of the peak in {peak}" if peak else ""
    return f"{told}{of} (perfgrid formulas {UTILIZATIONS[known[0]].split()[-1]})" if known else ""
