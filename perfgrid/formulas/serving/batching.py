"""Batching: who decides how many sequences run together, and the requests that are served.

``batch_rule``: ``given``, a batch that starts and ends together; ``rate``, requests that arrive at random at
``request_rate``; the others are closed loops (`clients`): ``concurrency``, as many sequences as stated, each replaced
by the next as it ends (continuous batching of an endless queue); ``memory``, the same with as many as fit; ``run``, the
same until ``requests`` of them have ended; ``clients``, each of which asks again when it has its answer.

In continuous batching a replica shares its time between prefills and steps: with P the time that one prompt adds and
n·T/b the share of a request in n steps of a batch b, it serves 1/(P + n·T(b)/b) requests per second (Little's law). For
``rate`` everything is tabulated at batches between one sequence per server and the largest (axis `load`), and the batch
is where capacity meets the arrivals. More memory moves the tabulated batches: where a kernel's time jumps between two
of them, times of equal arrivals change by up to a percent either way. Pools of their own are joined in `pools`.
"""

from itertools import pairwise

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import INNER, at, largest, only, table

NODES = INNER.labels["load"]
ENDLESS = ("concurrency", "memory")  # a queue that never empties: the next one takes the place of one that ends
STARTED = ("run", "clients")  # all begin together
LOOPS = (*ENDLESS, *STARTED)  # closed loops (`clients`)
ONE_BATCH = ("given", *LOOPS)
STATES = ("given", "concurrency", "clients")  # the study states the batch, or how many ask
CHOSEN = ("memory", "run", "rate")  # the system chooses the batch
QUEUED = (*ENDLESS, "rate")  # no beginning counts
REPLACED = (*LOOPS, "rate")  # continuous batching

# ---- equations ------------------------------------------------------------------------------------------------------


def hat_weights(rising, target, grows):
    """Weights by which values at successive nodes add up to the value where ``rising`` meets the target.

    From node to node the batch grows by the factor ``grows``. Steps whose time is a + c·b let 1/capacity fall with 1/b
    in a straight line: there the batch that meets the target is exact, and so is what is linear in it, wherever the
    nodes lie. Outside the nodes the value of the nearest one; where the table falls it counts as level.
    """
    level = [rising[0]]
    for value in rising[1:]:
        level.append(xp.maximum(level[-1], value))
    steps = []
    for low, high in pairwise(level):
        rises = high > low * (1 + 1e-6)
        part = xp.minimum(xp.maximum((target - low) / xp.where(rises, high - low, 1.0), 0.0), 1.0)
        part = part * high / (part * high + (1 - part) * low * grows)
        steps.append(xp.where(rises, part, xp.where(target > low, 1.0, 0.0)))
    return [1 - steps[0], *(a - b for a, b in pairwise(steps)), steps[-1]]


# ---- who decides ----------------------------------------------------------------------------------------------------


@formula(unit="1", source="kwon2023vllm")
def most_sequences(largest_batch, prompt_bound_batch, dp):
    """Sequences that can run at once: as many as memory and prompts leave room for, one per replica at least."""
    return xp.maximum(xp.minimum(largest_batch, prompt_bound_batch), dp)


@alternative(of="tabulated_batch", by="batch_rule", label="rate", unit="1", source="little1961")
def rate_tabulated_batch(most_sequences, dp, lockstep_ranks, decode_steps, whole_prompts, pp):
    """Batches at which serving is tabulated, by load: from one sequence per server to as many as fit, in equal ratios.

    A server is a replica, or those that are in lockstep. Where no steps are taken, as many as an iteration computes.
    """
    servers = dp / lockstep_ranks
    computed = xp.where(decode_steps > 0, most_sequences, dp * pp * whole_prompts)
    most, last = xp.minimum(most_sequences, computed) / servers, len(NODES) - 1
    return servers * table("load", **{node: most ** (i / last) for i, node in enumerate(NODES)})


@alternative(of="prefill_sequences", by="batch_rule", label="rate", unit="1", source="yu2022orca",
             others={"given": "group_batch", ENDLESS: "few_prompts"})  # fmt: skip
def rate_prefill_sequences(busiest_prompts, prompt_room):
    """Prompts that a replica computes together: of those in lockstep, the one with most, as there is room for them.

    What has none there is computed in the next iteration, when others have fewer.
    """
    return xp.minimum(busiest_prompts, prompt_room)


FORMULAS = by_label(
    "batch_rule",
    {
        "batch_is_given": ("1", "pope2022inference", "1 where the study states the batch, or how many ask."),
        "random_arrivals": ("1", "kleinrock1975queueing", "1 where requests arrive at random, at any rate."),
        "arrival_rate": ("1/s", "little1961", "Requests per second that arrive from outside."),
        "arrival_limit": ("1/s", "little1961", "Those that count as served; beyond a load of 1 their queue grows."),
    },
    {
        STATES: (1.0, 0.0, 0.0, 0.0),
        ("memory", "run"): (0.0, 0.0, 0.0, 0.0),
        "rate": (0.0, 1.0, "offered_rate", "served_limit"),
    },
)


# ---- capacity and load ----------------------------------------------------------------------------------------------


@formula(unit="1/s", source="little1961")
def offered_rate(request_rate, offered_load, largest_request_rate):
    """Requests per second that come at random: as stated, or a part of those that are served at most."""
    return xp.where(offered_load > 0, offered_load * largest_request_rate, request_rate)


@formula(unit="1/s", source="little1961")
def request_capacity(request_prefill_time, request_decode_time, dp):
    """Requests per second that all replicas serve with batches of the tabulated size, by load."""
    return dp / (request_prefill_time + request_decode_time)


@alternative(of="load_weight", by="batch_rule", label=ONE_BATCH, unit="1", source="little1961")
def LABEL_load_weight():
    """Weights of the tabulated batches, by load: there is one batch only."""
    return only("load", "node_1")


@alternative(of="load_weight", by="batch_rule", label="rate", unit="1", source="little1961")
def rate_load_weight(request_capacity, offered_rate, rate_tabulated_batch):
    """Weights of the tabulated batches, by load: of those whose capacities enclose the arrivals, by the batch there."""
    rising = [at(request_capacity, load=node) / offered_rate for node in NODES]
    grows = at(rate_tabulated_batch, load=NODES[1]) / at(rate_tabulated_batch, load=NODES[0])
    return table("load", **dict(zip(NODES, hat_weights(rising, 1.0, grows), strict=True)))


@alternative(of="served_rate", by="batch_rule", label="given", unit="1/s", source="little1961")
def given_served_rate(request_capacity):
    """Requests per second that end."""
    return at(request_capacity, load=NODES[0])


@alternative(of="served_rate", by="batch_rule", label="rate", unit="1/s", source="little1961")
def rate_served_rate(offered_rate, largest_request_rate):
    """Requests per second that end: as many as arrive, at most as many as the largest batch serves."""
    return xp.minimum(offered_rate, largest_request_rate)


@formula(unit="1/s", source="little1961, baccelli1995saturation")
def largest_request_rate(request_capacity, random_arrivals):
    """Requests per second that the tabulated batches serve at most; of random arrivals those of the largest batch.

    A queue that has grown takes all places, whatever fewer sequences would be served (Baccelli and Foss 1995).
    """
    return xp.where(random_arrivals > 0, at(request_capacity, load=NODES[-1]), largest(request_capacity, "load"))


@formula(unit="1/s", source="little1961")
def served_limit(largest_request_rate, largest_load):
    """Requests per second that count as served: the part ``largest_load`` of what the largest batch serves."""
    return largest_load * largest_request_rate


@alternative(of="load_fraction", by="batch_rule", label="rate", unit="1", source="little1961",
             others={ONE_BATCH: 1.0})  # fmt: skip
def rate_load_fraction(offered_rate, largest_request_rate):
    """Arrivals over what is served at most; beyond 1 the queue grows without end."""
    return offered_rate / largest_request_rate


@alternative(of="running_batch", by="batch_rule", label="rate", unit="1", source="little1961, kwon2023vllm",
             others={"given": "batch", LOOPS: "loop_batch"})  # fmt: skip
def rate_running_batch(served_rate, decode_steps, loaded_step_time, first_time, mean_prefill_ratio, most_sequences):
    """Sequences that run at the same time, over all replicas, on average: their rate times the time under way."""
    under_way = decode_steps * loaded_step_time + first_time * mean_prefill_ratio
    return xp.minimum(served_rate * under_way, most_sequences)


@formula(unit="1", source="agrawal2024sarathi")
def rate_prefill_load(met_decode_step_time, met_iteration_time, occupied_share, decode_steps):
    """Part of its time that a replica spends on prefills: all in which it works where answers have one token."""
    steps = xp.where(decode_steps > 0, met_decode_step_time, 0.0)
    return (1 - steps / met_iteration_time) * occupied_share


@formula(unit="1", source="agrawal2024sarathi")
def busy_share(rate_prefill_load):
    """Part of the time of a replica that goes to prefills."""
    return xp.minimum(rate_prefill_load, 0.99)
