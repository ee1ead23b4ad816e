"""Batching: who decides how many sequences run together, and the requests that are served.

``batch_rule``: ``given``, a batch that starts and ends together; ``concurrency``, as many sequences as stated, each
replaced by the next as it ends (continuous batching of an endless queue); ``memory``, the same with as many as fit;
``run``, the same until ``requests`` of them have ended, as benchmarks do; ``rate``, requests that arrive at random at
``request_rate``; ``clients``, a closed loop (`clients`). In continuous batching a replica shares its time between
prefills and steps: with P the time that one prompt adds and n·T/b the share of a request in n steps of a batch b, it
serves 1/(P + n·T(b)/b) requests per second (Little's law). For ``rate`` everything is tabulated at batches between one
sequence per server and the largest (axis `load`), and the batch is where capacity meets the arrivals. More memory
moves the tabulated batches: where a kernel's time jumps between two of them, times of equal arrivals change by up to a
percent either way. Separate pools divide the replicas: some compute prefills, the others steps, and the slower pool
sets the pace.
"""

from itertools import pairwise

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.axes import INNER, at, largest, only, table

from .tabulated import at_met_batch

NODES = INNER.labels["load"]
FIXED = ("given", "concurrency", "memory", "run")
ONE_BATCH = (*FIXED, "clients")
STATED = ("given", "concurrency")  # the study states the batch
STATES = (*STATED, "clients")  # or how many ask
ARRIVALS = {"LIMITED": ("rate", "limit")}
ENDLESS = ("given", "concurrency", "memory")  # one batch that stays
CHOSEN = ("memory", "run", "rate")  # the system chooses the batch
REPLACED = ("concurrency", "memory", "run", "rate", "clients")  # continuous batching

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


@alternative(of="tabulated_batch", by="batch_rule", label="given", unit="1", source="pope2022inference")
def given_tabulated_batch(batch):
    """Sequences of a batch that the study states."""
    return batch


@alternative(of="tabulated_batch", by="batch_rule", label="concurrency", unit="1", source="yu2022orca")
def concurrency_tabulated_batch(batch, prompt_bound_batch):
    """Sequences that the study states, as many as there are iterations for the prompts of."""
    return xp.minimum(batch, prompt_bound_batch)


@alternative(of="tabulated_batch", by="batch_rule", label="memory", unit="1", source="kwon2023vllm")
def memory_tabulated_batch(most_sequences):
    """As many sequences as can run."""
    return most_sequences


@formula(unit="1", source="kwon2023vllm")
def most_sequences(largest_batch, prompt_bound_batch, dp):
    """Sequences that can run at once: as many as memory and prompts leave room for, one per replica at least."""
    return xp.maximum(xp.minimum(largest_batch, prompt_bound_batch), dp)


@alternative(of="tabulated_batch", by="batch_rule", label="run", unit="1", source="kwon2023vllm")
def run_tabulated_batch(full_batch, last_batch):
    """As many sequences as fit and are there, and those that are left over at the end, by load."""
    return table("load", **{node: full_batch if node == NODES[0] else last_batch for node in NODES})


@formula(unit="1", source="kwon2023vllm")
def full_batch(most_sequences, dp, requests):
    """Sequences of a run that are under way together until the last round."""
    return xp.minimum(most_sequences, xp.maximum(requests, dp))


@formula(unit="1", source="kwon2023vllm")
def last_batch(full_batch, dp, requests):
    """Sequences of the last round of a run, as many as before if it comes out even."""
    left = requests - xp.floor(requests / full_batch) * full_batch
    return xp.maximum(xp.where(left > 0, left, full_batch), dp)


@alternative(of="tabulated_batch", by="batch_rule", label="rate", unit="1", source="little1961")
def rate_tabulated_batch(most_sequences, dp, lockstep_ranks):
    """Batches at which serving is tabulated, by load: from one sequence per server to as many as fit, in equal ratios.

    A server is a replica, or those that are in lockstep.
    """
    servers = dp / lockstep_ranks
    most, last = most_sequences / servers, len(NODES) - 1
    return servers * table("load", **{node: most ** (i / last) for i, node in enumerate(NODES)})


@alternative(of="prefill_sequences", by="batch_rule", label="given", unit="1", source="yu2022orca")
def given_prefill_sequences(group_batch):
    """Prompts that are computed together: those of a group."""
    return group_batch


@alternative(
    of="prefill_sequences", by="batch_rule", label=("concurrency", "memory", "run", "rate"), unit="1",
    source="yu2022orca",
)  # fmt: skip
def LABEL_prefill_sequences(busiest_prompts, prompts_of_an_iteration, lockstep_ranks, prompt_room):
    """Prompts that a replica computes together: of those in lockstep, the one with most, as there is room for them.

    What has none there is computed in the next iteration, when others have fewer.
    """
    mean = prompts_of_an_iteration / lockstep_ranks
    return xp.minimum(busiest_prompts, xp.maximum(prompt_room, mean))


@alternative(of="prefill_groups", by="batch_rule", label=FIXED, unit="1", source="narayanan2021")
def LABEL_prefill_groups(batch_groups, batch_parts):
    """Passes' worth of prompts that follow each other through the pipeline: one for every part of the batch."""
    return batch_groups * batch_parts


@alternative(of="prefill_groups", by="batch_rule", label=("rate", "clients"), unit="1", source="yu2022orca")
def LABEL_prefill_single():
    """Passes' worth of prompts that follow each other through the pipeline: a single prompt."""
    return 1.0


@alternative(of="batch_is_given", by="batch_rule", label=STATES, unit="1", source="pope2022inference")
def LABEL_batch_is_given():
    """1 where the study states the batch."""
    return 1.0


@alternative(of="batch_is_given", by="batch_rule", label=CHOSEN, unit="1", source="pope2022inference")
def LABEL_batch_is_chosen():
    """0 where the system chooses the batch."""
    return 0.0


@alternative(of="loop_of_clients", by="batch_rule", label=(*FIXED, "rate"), unit="1", source="yu2022orca")
def LABEL_no_loop():
    """0 where requests do not follow from the answers of clients."""
    return 0.0


@alternative(of="loop_of_clients", by="batch_rule", label="clients", unit="1", source="yu2022orca")
def clients_loop():
    """1 where every request follows from an answer to a client."""
    return 1.0


@alternative(of="pools_are_separate", by="pools", label="shared", unit="1", source="zhong2024distserve")
def shared_pools_are_separate():
    """0 where prefills run on the devices that decode."""
    return 0.0


@alternative(of="pools_are_separate", by="pools", label="separate", unit="1", source="zhong2024distserve")
def separate_pools_are_separate():
    """1 where prefills run on other replicas."""
    return 1.0


# ---- capacity and load ----------------------------------------------------------------------------------------------


@alternative(of="full_batch_decode_time", by="batch_rule", label=ONE_BATCH, unit="s", source="zhong2024distserve")
def LABEL_full_batch_decode_time(request_decode_time):
    """Time of a replica that decoding one request takes in the batch that pools are sized for: the only one."""
    return at(request_decode_time, load=NODES[0])


@alternative(of="full_batch_decode_time", by="batch_rule", label="rate", unit="s", source="zhong2024distserve")
def rate_full_batch_decode_time(request_decode_time):
    """Time of a replica that decoding one request takes in the batch that pools are sized for: the largest."""
    return at(request_decode_time, load=NODES[-1])


@formula(unit="1", source="zhong2024distserve")
def balanced_prefill_share(request_prefill_time, full_batch_decode_time):
    """Part of the replicas that computes prefills so that neither pool waits for the other, whole or not."""
    prefill = at(request_prefill_time, load=NODES[0])
    return prefill / (prefill + full_batch_decode_time)


@alternative(of="prefill_device_share", by="pools", label="shared", unit="1", source="zhong2024distserve")
def shared_prefill_device_share(balanced_prefill_share):
    """Part of the devices that separate pools would give to prefills (equal layouts)."""
    return balanced_prefill_share


@alternative(of="prefill_device_share", by="pools", label="separate", unit="1", source="zhong2024distserve")
def separate_prefill_device_share(balanced_prefill_share, prefill_replicas, dp):
    """Part of the devices that computes prefills: as stated, or so that neither pool waits."""
    return xp.where(prefill_replicas > 0, xp.minimum(prefill_replicas / dp, 1.0), balanced_prefill_share)


@alternative(of="decoding_replicas", by="pools", label="shared", unit="1", source="zhong2024distserve")
def shared_decoding_replicas(dp):
    """Replicas that decode: all."""
    return dp


@alternative(of="decoding_replicas", by="pools", label="separate", unit="1", source="zhong2024distserve")
def separate_decoding_replicas(dp, separate_prefill_device_share):
    """Replicas that decode: those that compute no prefills."""
    return dp * (1 - separate_prefill_device_share)


@alternative(of="request_capacity", by="pools", label="shared", unit="1/s", source="little1961")
def shared_request_capacity(request_prefill_time, request_decode_time, dp):
    """Requests per second that all replicas serve with batches of the tabulated size, by load."""
    return dp / (request_prefill_time + request_decode_time)


@alternative(of="request_capacity", by="pools", label="separate", unit="1/s", source="zhong2024distserve")
def separate_request_capacity(
    request_prefill_time, request_decode_time, dp, separate_prefill_device_share, separate_decoding_replicas
):
    """Requests per second that the slower pool serves with batches of the tabulated size, by load."""
    prefills = dp * separate_prefill_device_share / request_prefill_time
    return xp.minimum(prefills, separate_decoding_replicas / request_decode_time)


@constraint(
    reason="separate pools need a replica for prefills and one that decodes",
    source="zhong2024distserve",
    about="separate_request_capacity",
)
def pools_have_replicas(dp, prefill_replicas):
    """Each pool has a replica."""
    return (dp >= 2) & (prefill_replicas < dp)


@alternative(of="load_weight", by="batch_rule", label=ONE_BATCH, unit="1", source="little1961")
def LABEL_load_weight():
    """Weights of the tabulated batches, by load: there is one batch only."""
    return only("load", "node_1")


@alternative(of="load_weight", by="batch_rule", label="rate", unit="1", source="little1961")
def rate_load_weight(request_capacity, request_rate, rate_tabulated_batch):
    """Weights of the tabulated batches, by load: of those whose capacities enclose the arrivals, by the batch there."""
    rising = [at(request_capacity, load=node) / request_rate for node in NODES]
    grows = at(rate_tabulated_batch, load=NODES[1]) / at(rate_tabulated_batch, load=NODES[0])
    return table("load", **dict(zip(NODES, hat_weights(rising, 1.0, grows), strict=True)))


@alternative(of="served_rate", by="batch_rule", label="run", unit="1/s", source="little1961")
def run_served_rate(request_prefill_time, request_decode_time, full_batch, last_batch, requests, dp):
    """Requests per second of a run, its last round included, in which fewer sequences share the steps."""
    rounds = xp.ceil(requests / full_batch) - 1
    steady, ending = (at(request_decode_time, load=node) for node in NODES[:2])
    steps = (rounds * full_batch * steady + last_batch * ending) / dp
    return requests / (requests / dp * at(request_prefill_time, load=NODES[0]) + steps)


@alternative(of="served_rate", by="batch_rule", label=ENDLESS, unit="1/s", source="little1961")
def LABEL_served_rate(request_capacity):
    """Requests per second that end."""
    return at(request_capacity, load="node_1")


@alternative(of="served_rate", by="batch_rule", label="rate", unit="1/s", source="little1961")
def rate_served_rate(request_rate, largest_request_rate):
    """Requests per second that end: as many as arrive, at most as many as the largest batch serves."""
    return xp.minimum(request_rate, largest_request_rate)


@formula(unit="1/s", source="little1961")
def largest_request_rate(request_capacity):
    """Requests per second that the tabulated batches serve at most."""
    return largest(request_capacity, "load")


@alternative(of="arrival_LIMITED", by="batch_rule", label=ONE_BATCH, unit="1/s", source="little1961", family=ARRIVALS)
def LABEL_arrival_LIMITED():
    """The LIMITED of arrivals from outside: none come where every request follows one that ends."""
    return 0.0


@alternative(of="arrival_rate", by="batch_rule", label="rate", unit="1/s", source="little1961")
def rate_arrival_rate(request_rate):
    """Requests per second that arrive."""
    return request_rate


@alternative(of="arrival_limit", by="batch_rule", label="rate", unit="1/s", source="little1961")
def rate_arrival_limit(largest_request_rate):
    """Requests per second beyond which the queue grows without end."""
    return largest_request_rate


@alternative(of="load_fraction", by="batch_rule", label=ONE_BATCH, unit="1", source="little1961")
def LABEL_load_fraction():
    """Arrivals over what is served at most: the queue never ends."""
    return 1.0


@alternative(of="load_fraction", by="batch_rule", label="rate", unit="1", source="little1961")
def rate_load_fraction(request_rate, largest_request_rate):
    """Arrivals over what is served at most; beyond 1 the queue grows without end."""
    return request_rate / largest_request_rate


@alternative(of="running_batch", by="batch_rule", label="run", unit="1", source="kwon2023vllm")
def run_running_batch(full_batch):
    """Sequences that run at the same time, over all replicas, until the last round."""
    return full_batch


@alternative(of="running_batch", by="batch_rule", label=(*ENDLESS, "clients"), unit="1", source="little1961")
def LABEL_running_batch(LABEL_tabulated_batch, dp, decoding_replicas):
    """Sequences that run at the same time, over all replicas that decode."""
    return LABEL_tabulated_batch * decoding_replicas / dp


@alternative(of="running_batch", by="batch_rule", label="rate", unit="1", source="little1961")
def rate_running_batch(met_batch, occupied_share, decoding_replicas):
    """Sequences that run at the same time, over all replicas, on average; at low rates fewer than one per replica."""
    return met_batch * occupied_share * decoding_replicas


@formula(unit="1", source="agrawal2024sarathi")
def rate_prefill_load(iteration_time, decode_step_time, met_batch, node_batch, occupied_share, decode_steps):
    """Part of its time that a replica spends on prefills: all of it where answers have one token."""
    step, whole = (at_met_batch(met_batch, time, node_batch) for time in (decode_step_time, iteration_time))
    return (1 - xp.where(decode_steps > 0, step, 0.0) / whole) * occupied_share


@alternative(of="busy_share", by="pools", label="shared", unit="1", source="agrawal2024sarathi")
def shared_busy_share(rate_prefill_load):
    """Part of the time of a decoding replica that goes to prefills."""
    return xp.minimum(rate_prefill_load, 0.99)


@alternative(of="busy_share", by="pools", label="separate", unit="1", source="zhong2024distserve")
def separate_busy_share():
    """Part of the time of a decoding replica that goes to prefills: none where others compute them."""
    return 0.0
