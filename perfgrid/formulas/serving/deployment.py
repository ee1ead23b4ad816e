"""Two pools as one deployment: the cache on its way, what a request waits for, rates and cost of both together.

How long prompts and places are waited for is in `pools`.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.axes import at

from .batching import NODES

POOLS = {"POOL": ("prefill", "decode")}

# ---- the cache on its way -------------------------------------------------------------------------------------------


@formula(unit="s", source="zhong2024distserve")
def cache_transfer_time(
    decode_rank_cache, decode_ranks, prefill_ranks, decode_rank_rate, prefill_rank_rate, transfer_latency
):
    """Time in which the cache of a prompt moves: each decoding rank takes its part, the prefill ranks send all parts.

    Ranks of the decode pool that hold the same latent each receive it.
    """
    sent = decode_rank_cache * decode_ranks / (prefill_ranks * prefill_rank_rate)
    return xp.maximum(decode_rank_cache / decode_rank_rate, sent) + transfer_latency


def exposed(whole, computing, layers, by_layer):
    """Time of a transfer after a prefill: all of it, or the last layer's and what takes longer than the prefill."""
    return xp.where(by_layer, xp.maximum(whole / layers, whole - computing * (1 - 1 / layers)), whole)


@formula(unit="s", source="qin2024mooncake")
def exposed_transfer_time(cache_transfer_time, transfer_by_layer, prompt_time, layers):
    """Time of the transfer after the prefill: all of it, or the last layer's and what takes longer than the prefill."""
    return exposed(cache_transfer_time, prompt_time, layers, transfer_by_layer)


@formula(unit="s", source="qin2024mooncake")
def lone_transfer_time(cache_transfer_time, transfer_by_layer, own_prompt_time, layers):
    """The same of a prompt that no other is beside."""
    return exposed(cache_transfer_time, at(own_prompt_time, load=NODES[0]), layers, transfer_by_layer)


# ---- requests -------------------------------------------------------------------------------------------------------


@alternative(of="served_rate", by="workload", label="pools", unit="1/s", source="zhong2024distserve")
def pools_served_rate(wanted_rate, prefill_limit, decode_limit):
    """Requests per second that end: the slower pool sets the pace."""
    return xp.minimum(wanted_rate, xp.minimum(prefill_limit, decode_limit))


@alternative(of="largest_request_rate", by="workload", label="pools", unit="1/s", source="zhong2024distserve")
def pools_largest_request_rate(prefill_limit, decode_limit):
    """Requests per second that the deployment serves at most."""
    return xp.minimum(prefill_limit, decode_limit)


@formula(unit="s", source="zhong2024distserve")
def prompt_queue_time(prefill_spread, prompt_time):
    """Mean time of a request in the prefill pool before its prompt is computed."""
    return at(prefill_spread, statistic="mean") - prompt_time


@formula(unit="s", source="zhong2024distserve")
def place_queue_wait(decode_wait_spread):
    """Mean time until the decode pool has taken a request in: for a step to end, or for a place; or a step more."""
    return at(decode_wait_spread, statistic="mean")


@alternative(of="time_to_first_token", by="workload", label="pools", unit="s", source="zhong2024distserve")
def pools_time_to_first_token(servers_time, prompt_queue_time, prompt_time, exposed_transfer_time, place_queue_wait):
    """Mean time from arrival to first token: servers, queue, prefill, transfer, the decode pool."""
    return servers_time + prompt_queue_time + prompt_time + exposed_transfer_time + place_queue_wait


@formula(unit="1", source="zhong2024distserve", family=POOLS)
def POOL_pool_load(served_rate, POOL_limit):
    """Requests served over what the POOL pool takes at most."""
    return served_rate / POOL_limit


@alternative(of="load_fraction", by="workload", label="pools", unit="1", source="little1961")
def pools_load_fraction(wanted_rate, largest_request_rate):
    """Requests that users ask for over what is served at most."""
    return wanted_rate / largest_request_rate


# ---- both pools together --------------------------------------------------------------------------------------------


@alternative(of="devices", by="workload", label="pools", unit="1", source="zhong2024distserve")
def pools_devices(prefill_devices, decode_devices):
    """Devices of both pools."""
    return prefill_devices + decode_devices


@alternative(of="working_charge", by="workload", label="pools", unit="USD/s", source="epoch2024costs")
def pools_working_charge(prefill_charge, decode_charge):
    """Cost of a second of both pools."""
    return prefill_charge + decode_charge


@formula(unit="1/s", source="zhong2024distserve")
def prefill_capacity_per_device(prefill_limit, prompt_tokens, prefill_devices):
    """Prompt tokens that the prefill pool computes per second and device at most, cached ones included."""
    return prefill_limit * prompt_tokens / prefill_devices


@formula(unit="1/s", source="zhong2024distserve")
def decode_capacity_per_device(decode_limit, output_tokens, decode_devices):
    """Output tokens that the decode pool yields per second and device at most."""
    return decode_limit * output_tokens / decode_devices


# ---- constraints ----------------------------------------------------------------------------------------------------


@constraint(reason="the POOL pool alone is impossible", source="zhong2024distserve", family=POOLS)
def POOL_pool_is_legal(POOL_legal):
    """The design of the POOL pool is possible on its own."""
    return POOL_legal > 0


@constraint(
    kind="exceeds",
    reason="weights, cache and activations exceed the device memory of the POOL pool",
    source="kwon2023vllm",
    family=POOLS,
)
def POOL_pool_fits_memory(POOL_memory_per_device, POOL_memory_capacity):
    """Weights, cache and working space fit the memory of a device of the POOL pool."""
    return POOL_memory_per_device <= POOL_memory_capacity


@constraint(kind="exceeds", reason="caches of prompts come faster than links carry them", source="zhong2024distserve")
def links_carry_the_caches(served_rate, cache_transfer_time, transfer_latency, prefill_replicas):
    """The links of all prefill replicas carry the caches of the prompts that they compute."""
    return served_rate * (cache_transfer_time - transfer_latency) <= prefill_replicas
