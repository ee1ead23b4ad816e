"""Pools of their own: a prefill pool and a decode pool of any layout, joined to one deployment.

Each pool is evaluated on its own by the formulas of random arrivals, at `LOADS` parts of what it serves at most (axis
`load`): the prefill pool with answers of one token, the decode pool with requests that come with their cache
(``prefilled``). What is given here are its limit and the moments of its times, t. Near the limit they grow as
1/(1 - u); between two loads u, t·(1 - u) is a straight line.

With ``shared_queue`` the workers of a pool take requests from one queue, so that waits are shorter (Sakasegawa 1977).
Requests pass the prefill pool, the network, the decode pool: means, variances and third moments of independent times
add up. The first token comes from the prefill pool, when the decode pool has taken the request in; with
``decode_yields_first`` a step of the decode pool yields it.

Clients (``clients``) are a closed loop: one of N that comes meets the N - 1 others (Reiser and Lavenberg), so that the
times are those of random arrivals at their rate. At most the clients without a place wait for one.
"""

from itertools import pairwise
from math import log1p

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import INNER, at, only, table

from .arrivals import ARRIVALS, several_servers
from .batching import NODES
from .distributions import added, mixed, packed, unpacked

ROUNDING = 1e-9
LOADS = (1e-5, 0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99)  # of each pool alone
STATISTICS = INNER.labels["statistic"]
MOST_LOAD = LOADS[-1]  # of random arrivals; beyond it a design is flagged
MANY = 1e12  # random arrivals
MOST_MET = 0.99995  # that the many clients of a loop meet
BISECTIONS = 12  # of the search for the rate of a loop, before two steps of Newton's rule

FORMULAS = (
    *by_label(
        "workload",
        {"asking_time": ("s", "zhong2024distserve", "Time before a request is in the queues of both pools.")},
        {"pools": ("servers_time",)},
    ),
    *by_label(
        "batch_rule",
        {
            "wanted_rate": ("1/s", "little1961", "Requests per second that users ask for."),
            "met_rate": ("1/s", "reiser1980mva", "Requests per second among which one comes."),
            "most_load": ("1", "little1961", "Load up to which waits are counted."),
            "asking_clients": ("1", "little1961", "Requests that there can be at once."),
            "begun_share": ("1", "little1961", "Part of the requests that are there in the beginning."),
            "late_time": (
                "s",
                "little1961",
                "Time by which requests wait longer, as the slower pool does not keep up.",
            ),
        },
        {
            "rate": ("arrival_rate", "arrival_rate", "counted_load", MANY, 0.0, 0.0),
            "clients": ("loop_rate", "loop_met_rate", MOST_MET, "active_clients", "starting_share", "loop_rest"),
        },
    ),
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


def spread_at(load, *tables):
    """A time of one pool at a load, by statistic."""
    return table("statistic", **{n: at_load(v, load) for n, v in zip(STATISTICS, tables, strict=True)})


def shared(load, queues):
    """Wait in one queue for all workers over that in a queue of each."""
    return several_servers(xp.maximum(load, LOADS[0]), queues)


def time_in_prefill(load, mean, own, queues):
    """Mean time of a request in the prefill pool at a load."""
    own = at_load(own, load)
    return own + (at_load(mean, load) - own) * shared(load, queues)


def wait_in_decode(load, wait, token, queues, row):
    """Mean wait for the decode pool at a load, and by how much it is shorter than in a queue of each replica.

    For a step, and for a place: of clients no longer than ``row``, in which all without a place would get one.
    """
    whole, step = at_load(wait, load), at_load(token, load)
    place = xp.maximum(whole - step, 0.0)
    less = place - xp.minimum(place * shared(load, queues), row)
    return whole - less, less


def time_in_pools(prefill, decode, prefill_time, own, prefill_queues, stay, wait, token, decode_queues, row):
    """Mean time of a request in both pools at their loads."""
    _, less = wait_in_decode(decode, wait, token, decode_queues, row)
    return time_in_prefill(prefill, prefill_time, own, prefill_queues) + at_load(stay, decode) - less


def limited(spread, alone, most):
    """A spread whose variance is not more than that of one alone and so much, and is never nothing."""
    mean, variance, third = spread
    most = alone + most
    part = most / xp.maximum(variance, most)
    return mean, variance * part + ROUNDING * (mean**2 + alone), third * part * xp.sqrt(part)


# ---- the rate -------------------------------------------------------------------------------------------------------


@formula(unit="1", source="pope2022inference")
def pool_decode_steps(decode_steps, decode_yields_first, accepted_tokens):
    """Steps of one request in the decode pool: one more token where this pool yields the first."""
    return decode_steps + xp.where(decode_yields_first, 1 / accepted_tokens, 0.0)


@formula(unit="s", source="little1961")
def place_row(asking_clients, decode_places, decode_limit):
    """Time in which all clients that have no place in the decode pool would get one."""
    return xp.maximum(asking_clients - decode_places, 0.0) / decode_limit


@formula(unit="1", source="sakasegawa1977", family={"POOL": ("prefill", "decode")})
def POOL_queues(POOL_workers, shared_queue):
    """Workers of the POOL pool that take requests from one queue: all of them, or each has its own."""
    return xp.where(shared_queue, POOL_workers, 1.0)


@formula(unit="1/s", source="reiser1980mva")
def loop_met_rate(
    active_clients,
    prefill_limit,
    decode_limit,
    prefill_time_mean,
    own_prompt_time,
    prefill_queues,
    decode_stay_mean,
    decode_wait_mean,
    decode_token_mean,
    decode_queues,
    place_row,
    lone_transfer_time,
    asking_time,
):
    """Requests per second of the N - 1 others of a loop, x: x·(time of a request at x) = N - 1.

    Solved for z = -log(1 - load), as times grow like 1/(1 - load).
    """
    others, most = xp.maximum(active_clients - 1, 1e-6), xp.minimum(prefill_limit, decode_limit)

    tables = (
        *(prefill_time_mean, own_prompt_time, prefill_queues),
        *(decode_stay_mean, decode_wait_mean, decode_token_mean, decode_queues, place_row),
    )

    def over(z):
        rate = -xp.expm1(-z) * most
        time = time_in_pools(rate / prefill_limit, rate / decode_limit, *tables)
        return rate, rate * (time + lone_transfer_time + asking_time) / others - 1

    width = -log1p(-MOST_MET)
    low = 0.0 * others * most / most
    for _ in range(BISECTIONS):
        width = width / 2
        low = low + width * xp.where(over(low + width)[1] > 0, 0.0, 1.0)
    z = low + width / 2
    for _ in range(2):
        (_, here), (_, there) = over(z - width / 4), over(z + width / 4)
        step = (here + there) / 2 * width / 2 / xp.maximum(there - here, 1e-12)
        z = xp.maximum(z - xp.minimum(xp.maximum(step, -width), width), 0.0)
    return over(z)[0]


@formula(unit="s", source="little1961")
def loop_time(
    prefill_met_load,
    decode_met_load,
    prefill_time_mean,
    own_prompt_time,
    prefill_queues,
    decode_stay_mean,
    decode_wait_mean,
    decode_token_mean,
    decode_queues,
    place_row,
    exposed_transfer_time,
    asking_time,
):
    """Time of a request of a loop among its others."""
    tables = (
        *(prefill_time_mean, own_prompt_time, prefill_queues),
        *(decode_stay_mean, decode_wait_mean, decode_token_mean, decode_queues, place_row),
    )
    return time_in_pools(prefill_met_load, decode_met_load, *tables) + exposed_transfer_time + asking_time


@formula(unit="s", source="little1961")
def loop_rest(active_clients, loop_time, prefill_limit, decode_limit):
    """Time by which requests wait longer, as the slower pool does not keep up with N clients after so long."""
    return xp.maximum(active_clients / xp.minimum(prefill_limit, decode_limit) - loop_time, 0.0)


@formula(unit="1/s", source="little1961")
def loop_rate(active_clients, loop_time, loop_rest):
    """Requests per second of the loop: N clients over the time of a request."""
    return active_clients / (loop_time + loop_rest)


@formula(unit="1", source="little1961")
def counted_load(largest_load):
    """Load of random arrivals up to which waits are counted."""
    return xp.minimum(largest_load, MOST_LOAD)


@formula(unit="1", source="little1961", family={"POOL": ("prefill", "decode")})
def POOL_met_load(met_rate, POOL_limit, most_load):
    """Load of the POOL pool that a request meets."""
    return xp.minimum(met_rate / POOL_limit, most_load)


# ---- times of one pool ----------------------------------------------------------------------------------------------


@formula(unit="s", source="zhong2024distserve, sakasegawa1977, reiser1980mva")
def prefill_spread(
    prefill_met_load,
    prefill_time_mean,
    prefill_time_deviation,
    prefill_time_lean,
    own_prompt_time,
    prefill_queues,
    away_from_prefill,
    prefill_limit,
    decode_limit,
    asking_clients,
    begun_share,
    late_time,
):
    """Time of a request in the prefill pool, by statistic.

    Waits are of one queue; that of clients varies as those do that are elsewhere, at most like a Poisson number. In the
    beginning they all come together, and their prompts are computed in a row.
    """
    tables = (prefill_time_mean, prefill_time_deviation, prefill_time_lean)
    alone = unpacked(spread_at(0.0 * prefill_met_load + LOADS[0], *tables))
    _, variance, third = unpacked(spread_at(prefill_met_load, *tables))
    less = shared(prefill_met_load, prefill_queues) / prefill_queues
    own = time_in_prefill(prefill_met_load, prefill_time_mean, own_prompt_time, prefill_queues)
    queue = alone[1] + xp.maximum(variance - alone[1], 0.0) * less, third * less / prefill_queues
    mean, variance, third = limited((own, *queue), alone[1], away_from_prefill / prefill_limit**2)
    later = (mean + xp.where(prefill_limit <= decode_limit, late_time, 0.0), variance, third)
    row = begun_share * xp.maximum(asking_clients - 1, 0.0) / prefill_limit / xp.maximum(begun_share, 1e-9)
    return packed(*mixed([(1 - begun_share, *later), (begun_share, alone[0] + row / 2, row**2 / 12, 0.0)]))


@formula(unit="1", source="little1961")
def away_from_prefill(asking_clients, met_rate, prefill_met_load, prefill_time_mean, own_prompt_time, prefill_queues):
    """Clients that are not in the prefill pool, on average."""
    time = time_in_prefill(prefill_met_load, prefill_time_mean, own_prompt_time, prefill_queues)
    return xp.maximum(asking_clients - met_rate * time, 0.0)


@formula(unit="s", source="zhong2024distserve, sakasegawa1977, little1961")
def decode_wait_spread(
    decode_met_load,
    decode_wait_mean,
    decode_wait_deviation,
    decode_wait_lean,
    decode_token_mean,
    decode_queues,
    place_row,
    prefill_limit,
    decode_limit,
    late_time,
):
    """Time of a request in the decode pool before its first step ends or, if the prefill has yielded one, begins.

    Waits for a place are of one queue, and of clients not more can wait than have none.
    """
    tables = (decode_wait_mean, decode_wait_deviation, decode_wait_lean)
    _, variance, third = unpacked(spread_at(decode_met_load, *tables))
    mean, _ = wait_in_decode(decode_met_load, decode_wait_mean, decode_token_mean, decode_queues, place_row)
    mean = mean + xp.where(prefill_limit <= decode_limit, 0.0, late_time)
    less, step = shared(decode_met_load, decode_queues) / decode_queues, at_load(decode_token_mean, decode_met_load)
    alone = xp.minimum(variance, step**2 / 12)  # a step ends at any time
    queue = (mean, alone + (variance - alone) * less, third * less / decode_queues)
    return packed(*limited(queue, step**2, place_row / decode_limit))


@formula(unit="s", source="zhong2024distserve, kleinrock1975queueing")
def decode_rest_spread(
    decode_met_load,
    decode_stay_mean,
    decode_stay_deviation,
    decode_stay_lean,
    decode_wait_mean,
    decode_wait_deviation,
    decode_wait_lean,
):
    """Time of a request in the decode pool after this wait, by statistic."""
    stay = spread_at(decode_met_load, decode_stay_mean, decode_stay_deviation, decode_stay_lean)
    wait = spread_at(decode_met_load, decode_wait_mean, decode_wait_deviation, decode_wait_lean)
    return packed(*(xp.maximum(whole - part, 0.0) for whole, part in zip(unpacked(stay), unpacked(wait), strict=True)))


@alternative(of="token_time_spread", by="workload", label="pools", unit="s", source="kleinrock1975queueing")
def pools_token_time_spread(decode_met_load, decode_token_mean, decode_token_deviation, decode_token_lean):
    """Mean time between the tokens of a request, over requests, by statistic."""
    return spread_at(decode_met_load, decode_token_mean, decode_token_deviation, decode_token_lean)


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
def pools_latency_spread(asking_time, first_token_spread, decode_rest_spread):
    """Time from the arrival of a request to its last token, over requests, by statistic."""
    return packed(*added((asking_time, 0.0, 0.0), unpacked(first_token_spread), unpacked(decode_rest_spread)))


@alternative(of="loaded_step_time", by="workload", label="pools", unit="s", source="little1961")
def pools_loaded_step_time(token_time_spread, accepted_tokens):
    """Time from step to step of a running sequence."""
    return at(token_time_spread, statistic="mean") * accepted_tokens


@alternative(of="running_batch", by="workload", label="pools", unit="1", source="little1961")
def pools_running_batch(served_rate, pool_decode_steps, loaded_step_time):
    """Sequences that run at the same time in the decode pool, on average."""
    return served_rate * pool_decode_steps * loaded_step_time
