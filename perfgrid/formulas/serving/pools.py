"""Pools of their own: a prefill pool and a decode pool of any layout, joined to one deployment.

Each pool is evaluated on its own by the formulas of random arrivals, at `LOADS` parts of what it serves at most (axis
`load`): the prefill pool with answers of one token, the decode pool with requests that come with their cache
(``prefilled``). What is given here are its limit and the moments of its times, t. Near the limit they grow as
1/(1 - u); between two loads u, t·(1 - u) is a straight line.

Requests pass the prefill pool, the network, the decode pool: means, variances and third moments of independent times
add up. The first token comes from the prefill pool, when the decode pool has taken the request in; with
``decode_yields_first`` a step of the decode pool yields it.

Clients (``clients``) are a closed loop: one of N that comes meets the N - 1 others (Reiser and Lavenberg), so that the
times are those of random arrivals at (1 - 1/N) of the loop's rate X, and X is where X·(time of a request) = N.
"""

from itertools import pairwise

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import at, only, table

from .arrivals import ARRIVALS
from .batching import NODES
from .distributions import added, mixed, packed, unpacked

LOADS = (0.001, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99)  # of each pool alone
MOST_LOAD = LOADS[-1]  # of random arrivals; beyond it a design is flagged
MOST_MET = 0.99995  # that the many clients of a loop meet
BISECTIONS = 14  # of the search for the rate of a loop, before two steps of Newton's rule

FORMULAS = by_label(
    "workload",
    {"asking_time": ("s", "zhong2024distserve", "Time before a request is in the queues of both pools.")},
    {"pools": ("servers_time",)},
)

# ---- equations ------------------------------------------------------------------------------------------------------


def at_load(values, load):
    """A time of one pool at a load, from those at `LOADS`: t·(1 - u) is a straight line between two of them."""
    scaled = [at(values, load=node) * (1 - u) for node, u in zip(NODES, LOADS, strict=True)]
    value = scaled[0]
    for (low, high), (before, after) in zip(pairwise(LOADS), pairwise(scaled), strict=True):
        part = xp.minimum(xp.maximum((load - low) / (high - low), 0.0), 1.0)
        value = value + part * (after - before)
    return value / (1 - load)


def spread_at(load, mean, deviation, leaning):
    """Mean, variance and third central moment of a time of one pool at a load."""
    mean, deviation, leaning = (at_load(one, load) for one in (mean, deviation, leaning))
    return mean, deviation**2, leaning * deviation**2


def cycle(rate, prefill_limit, decode_limit, prefill_mean, decode_mean, other):
    """Time of a request at a rate: of both pools, and whatever does not depend on it."""
    prefill = at_load(prefill_mean, xp.minimum(rate / prefill_limit, MOST_MET))
    return prefill + at_load(decode_mean, xp.minimum(rate / decode_limit, MOST_MET)) + other


# ---- the rate -------------------------------------------------------------------------------------------------------


@formula(unit="1", source="pope2022inference")
def pool_decode_steps(decode_steps, decode_yields_first, accepted_tokens):
    """Steps of one request in the decode pool: one more token where this pool yields the first."""
    return decode_steps + xp.where(decode_yields_first, 1 / accepted_tokens, 0.0)


@formula(unit="1/s", source="reiser1980mva")
def loop_rate(
    active_clients,
    prefill_limit,
    decode_limit,
    prefill_time_mean,
    decode_stay_mean,
    lone_transfer_time,
    asking_time,
):
    """Requests per second of the loop: N clients over the time of a request, X·T(X·(1 - 1/N)) = N.

    With a single client nobody is met.
    """
    clients = xp.maximum(active_clients, 1.0)
    met, pools = 1 - 1 / clients, (prefill_limit, decode_limit, prefill_time_mean, decode_stay_mean)
    most = xp.minimum(prefill_limit, decode_limit)
    low, high = 0.0 * most, most * (1 + 0.0 * clients)
    for _ in range(BISECTIONS):
        rate = (low + high) / 2
        over = rate * cycle(rate * met, *pools, lone_transfer_time + asking_time) > clients
        low, high = xp.where(over, low, rate), xp.where(over, rate, high)
    rate, width = (low + high) / 2, most * 0.5**BISECTIONS
    for _ in range(2):
        here, there = (
            one * cycle(one * met, *pools, lone_transfer_time + asking_time)
            for one in (rate - width / 2, rate + width / 2)
        )
        found = rate - ((here + there) / 2 - clients) * width / xp.maximum(there - here, 1e-12 * clients)
        rate = xp.minimum(xp.maximum(found, rate - width), rate + width)
    return xp.minimum(rate, most)


@alternative(of="wanted_rate", by="batch_rule", label="rate", unit="1/s", source="little1961",
             others={"clients": "loop_rate"})  # fmt: skip
def rate_wanted_rate(request_rate):
    """Requests per second that users ask for."""
    return request_rate


@alternative(of="met_rate", by="batch_rule", label="rate", unit="1/s", source="little1961")
def rate_met_rate(request_rate):
    """Requests per second among which one comes."""
    return request_rate


@alternative(of="met_rate", by="batch_rule", label="clients", unit="1/s", source="reiser1980mva")
def clients_met_rate(loop_rate, active_clients):
    """Requests per second among which one of a loop comes: those of all other clients."""
    return loop_rate * (1 - 1 / xp.maximum(active_clients, 1.0))


@alternative(of="most_load", by="batch_rule", label="rate", unit="1", source="little1961", others={"clients": MOST_MET})
def rate_most_load(largest_load):
    """Load up to which waits are counted."""
    return xp.minimum(largest_load, 1.0) * MOST_LOAD


@formula(unit="1", source="little1961", family={"POOL": ("prefill", "decode")})
def POOL_met_load(met_rate, POOL_limit, most_load):
    """Load of the POOL pool that a request meets."""
    return xp.minimum(met_rate / POOL_limit, most_load)


# ---- times of one pool ----------------------------------------------------------------------------------------------


@formula(unit="s", source="zhong2024distserve, kleinrock1975queueing")
def loop_prefill_spread(prefill_met_load, prefill_time_mean, prefill_time_deviation, prefill_time_lean):
    """Time of a request in the prefill pool, by statistic."""
    return packed(*spread_at(prefill_met_load, prefill_time_mean, prefill_time_deviation, prefill_time_lean))


@alternative(of="prefill_spread", by="batch_rule", label="clients", unit="s", source="reiser1980mva",
             others={"rate": "loop_prefill_spread"})  # fmt: skip
def clients_prefill_spread(loop_prefill_spread, active_clients, starting_share, prefill_limit, prefill_time_mean):
    """The same of clients, who all come together in the beginning: their prompts are computed in a row."""
    row, alone = xp.maximum(active_clients - 1, 0.0) / prefill_limit, at(prefill_time_mean, load=NODES[0])
    begin = (starting_share, alone + row / 2, row**2 / 12, 0.0)
    return packed(*mixed([(1 - starting_share, *unpacked(loop_prefill_spread)), begin]))


@formula(unit="s", source="zhong2024distserve, kleinrock1975queueing")
def decode_wait_spread(decode_met_load, decode_wait_mean, decode_wait_deviation, decode_wait_lean):
    """Time of a request in the decode pool before its first step ends or, if the prefill has yielded one, begins."""
    return packed(*spread_at(decode_met_load, decode_wait_mean, decode_wait_deviation, decode_wait_lean))


@formula(unit="s", source="zhong2024distserve, kleinrock1975queueing")
def decode_stay_spread(decode_met_load, decode_stay_mean, decode_stay_deviation, decode_stay_lean):
    """Time of a request in the decode pool, by statistic."""
    return packed(*spread_at(decode_met_load, decode_stay_mean, decode_stay_deviation, decode_stay_lean))


@alternative(of="token_time_spread", by="workload", label="pools", unit="s", source="kleinrock1975queueing")
def pools_token_time_spread(decode_met_load, decode_token_mean, decode_token_deviation, decode_token_lean):
    """Mean time between the tokens of a request, over requests, by statistic."""
    return packed(*spread_at(decode_met_load, decode_token_mean, decode_token_deviation, decode_token_lean))


@formula(unit="s", source="narayanan2021")
def prompt_time(prefill_met_load, own_prompt_time):
    """Time in which the prompt of a request is computed, beside others of its iterations."""
    return at_load(own_prompt_time, prefill_met_load)


# ---- of both --------------------------------------------------------------------------------------------------------


@alternative(of="prefill_sojourn", by="workload", label="pools", unit="s", source="zhong2024distserve")
def pools_prefill_sojourn(prefill_spread, exposed_transfer_time, decode_wait_spread):
    """Time from arrival to first token, by arrival (all of one kind) and statistic."""
    times = (unpacked(prefill_spread), (exposed_transfer_time, 0.0, 0.0), unpacked(decode_wait_spread))
    return table("arrival", **dict.fromkeys(ARRIVALS, packed(*added(*times))))


@alternative(of="arrival_share", by="workload", label="pools", unit="1", source="zhong2024distserve")
def pools_arrival_share():
    """Part of the requests that meet each of these, by arrival: one kind stands for all."""
    return only("arrival", ARRIVALS[-2])


@formula(unit="s", source="zhong2024distserve")
def servers_time(front_end_time, decode_front_end_time):
    """Time of a request outside the passes: the server of each pool receives it."""
    return front_end_time + decode_front_end_time


@alternative(of="latency_spread", by="workload", label="pools", unit="s", source="zhong2024distserve")
def pools_latency_spread(prefill_spread, exposed_transfer_time, decode_stay_spread):
    """Time from the arrival of a request to its last token, over requests, by statistic."""
    times = (unpacked(prefill_spread), (exposed_transfer_time, 0.0, 0.0), unpacked(decode_stay_spread))
    return packed(*added(*times))


@alternative(of="loaded_step_time", by="workload", label="pools", unit="s", source="little1961")
def pools_loaded_step_time(token_time_spread, accepted_tokens):
    """Time from step to step of a running sequence."""
    return at(token_time_spread, statistic="mean") * accepted_tokens


@alternative(of="running_batch", by="workload", label="pools", unit="1", source="little1961")
def pools_running_batch(served_rate, pool_decode_steps, loaded_step_time):
    """Sequences that run at the same time in the decode pool, on average."""
    return served_rate * pool_decode_steps * loaded_step_time
