"""The amounts behind an answer that its question leaves open: what devices cost and how long they are kept, how even
experts are loaded, how many prompt tokens are found in a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfgrid.catalog import Catalog, Entry
from perfgrid.study.entries import DEFAULTS
from perfgrid.text.numbers import number

YEAR = 365.25 * 86400.0
FOLLOWS = {"utilization": "all paid hours are used"}  # what a stated rent implies, in words
IN_STUDY = "{} in a study"  # where a quantity is stated that no option states


def paid(catalog: Catalog, devices: Sequence[str]) -> str:
    """What costs rest on where no rent is stated: owned devices with prices, years of use, interest and idle hours."""
    entries = [catalog.entry("device", name) for name in devices]
    known = [f"{entry.name} {price}" for entry in entries if (price := _price(entry))]
    unknown = ", ".join(entry.name for entry in entries if not _price(entry))
    market = catalog.entry("price", DEFAULTS["price"]).values
    life, interest, upkeep, used, power = (
        float(market[name] or 0)  # type: ignore[arg-type]
        for name in ("equipment_life", "interest_rate", "maintenance_rate", "utilization", "electricity_price")
    )
    amounts = [
        f"at market prices ({'; '.join([*known, *([f'unknown of {unknown}'] if unknown else [])])})",
        f"kept {life / YEAR:g} years at {interest:.0%} interest and {upkeep:.0%} maintenance a year",
        f"electricity {number(power, 'USD/J')}",
        f"{1 - used:.0%} of the paid hours idle",
    ]
    return f"devices owned, {', '.join(amounts)}"


def _price(entry: Entry) -> str:
    """The price of a device with its range; empty where it is unknown."""
    price, detail = entry.values.get("purchase_price"), entry.details.get("purchase_price")
    if not isinstance(price, float) or not price:
        return ""
    ends = [end for end in (detail.low, detail.high) if end is not None] if detail else []
    between = f", {' to '.join(number(end, 'USD') for end in ends)}" if len(ends) == 2 else ""
    return f"{number(price, 'USD')}{between}"


def taken_of_model(workload: str, mixture: bool, stated: Mapping[str, object]) -> dict[str, str]:
    """What is taken of the load of experts and of prompts that share a beginning, by where it is stated."""
    found = {}
    if workload == "training" and mixture and "expert_imbalance" not in stated:
        found["expert_imbalance"] = "balanced experts: each rank has as many tokens (expert_imbalance 1)"
    if workload != "training" and "prefix_hit_rate" not in stated:
        found["prefix_hit_rate"] = "prompts share no cached prefix (prefix_hit_rate 0)"
    return {IN_STUDY.format(name): words for name, words in found.items()}
