"""Systems of designs: engines of perfgrid's own designs, with the limits that its formulas use."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from .policies import Policy
from .server import Server
from .surface import lockstep_ranks, of_design
from .system import System

Design = dict[str, Any]


def server_of(design: Design, policy: Policy, longest: int = 32768) -> Server:
    """One engine of a design: a replica or a lockstep group; ``policy.places`` are those of one replica."""
    stages = int(design.get("pp", 1.0))
    policy = replace(policy, places=max(policy.places // stages, 1))
    surface = of_design(design, policy.tokens, policy.places, longest)
    return Server(surface, policy, ranks=lockstep_ranks(design), groups=stages)


def system_of(design: Design, policy: Policy, longest: int = 32768) -> System:
    """A design whose devices all do the same: as many engines as its ``dp`` holds."""
    from tests.inference.designs import point

    replicas = max(int(design.get("dp", 1.0)) // lockstep_ranks(design), 1)
    front_end = float(point(**design)["front_end_time"])
    return System(server_of(design, policy, longest), replicas=replicas, front_end=front_end)


def pools_of(prefill: Design, decode: Design, policy: Policy, longest: int = 32768) -> System:
    """Two pools; the cache crosses at the rate of the adapters of a decoding replica."""
    from tests.inference.designs import evaluate, value

    first, second = (system_of(one, policy, longest) for one in (prefill, decode))
    links = evaluate("tier_bandwidth", "tier_transfer_latency", **decode)
    ranks, (_, adapter), (_, latency) = (decode.get(n, 1.0) for n in ("tp", "pp")), *links.values()
    whole = decode | {"tp": 1.0, "pp": 1.0}
    few, many = (value("rank_prompt_cache", **whole | {"prompt_tokens": n}) for n in (1e3, 2e3))
    each = (many - few) / 1e3
    rate = prod(ranks) * adapter
    return replace(
        first,
        decode=second.server,
        decode_replicas=second.replicas,
        transfer=latency + max(few - 1e3 * each, 0.0) / rate,
        transfer_token=each / rate,
    )


def most_places(design: Design) -> int:
    """Sequences of one replica that its memory and its software hold at once; 0 where the design cannot be."""
    from tests.inference.designs import value

    return int(value("largest_batch", **design) / max(design.get("dp", 1.0), 1.0))
