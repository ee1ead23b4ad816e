"""Pools of their own: a prefill pool and a decode pool of any layout, joined to one deployment.

Each pool is evaluated on its own by the formulas of inference; what is given here are its results. A prefill worker
computes passes of up to G prompts: those of all its replicas in lockstep. A pass of j prompts takes P(j), a straight
line from one prompt to G. The decode pool is tabulated by batch (axis `load`), n steps of T(b) each: b running
sequences end b/(n·T(b)) requests per second. The prefill pool computes at most w·G/P(G). The slower pool sets the pace.

Arrivals (``batch_rule`` `rate`) meet a worker that computes, with chance b, and wait for the end of its pass; with
e = sqrt(2·(w + 1)) - 1 (Sakasegawa) and v the variation of the lengths this is R = b^e·P(j)/w·(1 + v²)/2. Behind other
prompts they wait for further passes: u/(1 - u)·u^e·P(G)/(w·G)·(1 + v²)/2. With one worker and one prompt a pass this is
M/G/1, with several workers M/G/w.

Clients (``clients``) are a closed loop. By the arrival theorem of mean-value analysis a request finds the queue of the
others: y = K/(Z + R + y)·(y + r), with K = (c - 1)·s, s = P(G)/(w·G), r = s·(1 + v²)/2 and Z all other time of a
request: y² + y·(Z + R - K) = K·r. The first token comes from the prefill pool, when the cache has arrived at the
decode pool and a place is free there; with ``decode_yields_first`` a step of the decode pool yields it.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import at, largest, smallest, table, total

from .batching import NODES, hat_weights

# ---- equations ------------------------------------------------------------------------------------------------------


def chance_exponent(servers):
    """Power of the load that is the chance to find all of so many servers busy (Sakasegawa 1977)."""
    return xp.sqrt(2 * (servers + 1)) - 1


def wait_of_arrivals(load, servers, service, variation):
    """Mean wait of random arrivals for one of several servers (M/G/c): u^e/(c·(1 - u))·S·(1 + v²)/2.

    u is the load, e = sqrt(2·(c + 1)) - 1 for c servers, S the time that a request holds one, v its coefficient of
    variation. Beyond 99 % load that of 99 %: such a point is flagged.
    """
    u = xp.minimum(load, 0.99)
    return u ** chance_exponent(servers) / (servers * (1 - u)) * service * (1 + variation**2) / 2


def wait_behind(rate, slot, workers, variation):
    """Mean wait for whole passes of prompts before one's own, for which a part u of the arrivals waits."""
    return xp.minimum(rate * slot, 0.99) * wait_of_arrivals(rate * slot, workers, workers * slot, variation)


# ---- the prefill pool -----------------------------------------------------------------------------------------------


@formula(unit="s", source="zhong2024distserve")
def further_prompt_time(lone_pass_time, full_pass_time, full_pass_prompts):
    """Time by which one more prompt lengthens a pass of the prefill pool."""
    more = xp.maximum(full_pass_prompts - 1, 0.0)
    return xp.where(more > 0, xp.maximum(full_pass_time - lone_pass_time, 0.0) / xp.maximum(more, 1e-9), 0.0)


@formula(unit="s", source="zhong2024distserve")
def prompt_slot(full_pass_time, full_pass_prompts, prefill_workers):
    """Time from prompt to prompt of the whole prefill pool where it never idles."""
    return full_pass_time / (full_pass_prompts * prefill_workers)


@formula(unit="1", source="bailey1954bulk")
def prompts_per_pass(prompt_rate, prefill_workers, lone_pass_time, further_prompt_time, full_pass_prompts):
    """Prompts of a pass, mean: those that came during the pass before it, j = rate·(a + f·(j - 1)), at most a full one.

    A pass takes a with one prompt and f more with each further one.
    """
    rate = prompt_rate / prefill_workers
    slack = xp.maximum(1 - rate * further_prompt_time, 1e-6)
    come = rate * (lone_pass_time - further_prompt_time) / slack
    return xp.minimum(xp.maximum(come, 1.0), full_pass_prompts)


@formula(unit="s", source="bailey1954bulk")
def mean_pass_time(lone_pass_time, further_prompt_time, prompts_per_pass):
    """Time of a pass of the mean number of prompts."""
    return lone_pass_time + further_prompt_time * (prompts_per_pass - 1)


@formula(unit="s", source="narayanan2021")
def prompt_time(mean_pass_time, lone_prompt_time, lone_pass_time):
    """Time until the prompts of a pass are computed: the pass in every stage of the pipeline."""
    return mean_pass_time + xp.maximum(lone_prompt_time - lone_pass_time, 0.0)


@formula(unit="s", source="sakasegawa1977, bailey1954bulk")
def running_pass_wait(prompt_rate, mean_pass_time, prompts_per_pass, prefill_workers, prompt_variation):
    """Mean wait of a prompt until the next pass starts: b^e·P/w·(1 + v²)/2 where workers compute with chance b."""
    busy = xp.minimum(prompt_rate * mean_pass_time / (prompts_per_pass * prefill_workers), 1.0)
    rest = mean_pass_time / prefill_workers * (1 + prompt_variation**2) / 2
    return busy ** chance_exponent(prefill_workers) * rest


@alternative(of="prompt_queue_time", by="batch_rule", label="rate", unit="s", source="sakasegawa1977")
def rate_prompt_queue_time(running_pass_wait, request_rate, prompt_slot, prefill_workers, prompt_variation):
    """Mean wait of a prompt in the prefill pool: for the pass that runs, and for those of prompts before it."""
    return running_pass_wait + wait_behind(request_rate, prompt_slot, prefill_workers, prompt_variation)


@alternative(of="prompt_queue_time", by="batch_rule", label="clients", unit="s", source="reiser1980mva")
def clients_prompt_queue_time(
    running_pass_wait, loop_queue_time, loop_place_time, starting_share, starting_pass_time, mean_pass_time
):
    """Mean wait of a prompt in the prefill pool: in the loop, and of those that come together in the beginning.

    In the loop it waits for prompts of clients that do not wait for a place.
    """
    loop = running_pass_wait + xp.maximum(loop_queue_time - loop_place_time, 0.0)
    return (1 - starting_share) * loop + starting_share * (starting_pass_time - mean_pass_time)


# ---- the decode pool ------------------------------------------------------------------------------------------------


@formula(unit="1", source="pope2022inference")
def pool_decode_steps(decode_steps, decode_yields_first, accepted_tokens):
    """Steps of one request in the decode pool: one more token where this pool yields the first."""
    return decode_steps + xp.where(decode_yields_first, 1 / accepted_tokens, 0.0)


@formula(unit="s", source="little1961")
def pool_decode_time(pool_decode_steps, pool_step_time):
    """Time of all steps of a request, by load."""
    return xp.maximum(pool_decode_steps, 1e-9) * pool_step_time


@formula(unit="1/s", source="little1961")
def decode_capacity(pool_batch, pool_decode_time):
    """Requests per second that the decode pool ends with batches of the tabulated size, by load."""
    return pool_batch / pool_decode_time


@alternative(of="decode_target", by="batch_rule", label="clients", unit="1/s", source="reiser1980mva",
             others={"rate": "request_rate"})  # fmt: skip
def clients_decode_target(active_clients, loop_other_time, loop_queue_by_batch):
    """Requests per second that the decode pool is asked for, by load: arrivals, or the loop with such a batch."""
    return active_clients / (loop_other_time + loop_queue_by_batch)


@alternative(of="load_weight", by="workload", label="pools", unit="1", source="little1961")
def pools_load_weight(decode_capacity, decode_target, pool_batch):
    """Weights of the tabulated batches, by load: of those where the decode pool ends as many as it is asked for."""
    rising = [at(decode_capacity, load=node) / at(decode_target, load=node) for node in NODES]
    grows = at(pool_batch, load=NODES[1]) / at(pool_batch, load=NODES[0])
    return table("load", **dict(zip(NODES, hat_weights(rising, 1.0, grows), strict=True)))


@formula(unit="1/s", source="zhong2024distserve")
def decode_limit(decode_capacity):
    """Requests per second that the decode pool ends at most."""
    return largest(decode_capacity, "load")


@formula(unit="1/s", source="zhong2024distserve")
def prefill_limit(prompt_slot):
    """Requests per second that the prefill pool computes at most."""
    return 1 / prompt_slot


@alternative(of="loaded_step_time", by="workload", label="pools", unit="s", source="pope2022inference")
def pools_loaded_step_time(pool_step_time, load_weight):
    """Time from step to step of a running sequence."""
    return total(pool_step_time * load_weight, "load")


@alternative(of="running_batch", by="workload", label="pools", unit="1", source="little1961")
def pools_running_batch(served_rate, pool_decode_steps, loaded_step_time):
    """Sequences that run at the same time in the decode pool, on average."""
    return served_rate * pool_decode_steps * loaded_step_time


# ---- the closed loop ------------------------------------------------------------------------------------------------


@formula(unit="1/s", source="little1961")
def loop_rate_bound(active_clients, prefill_limit, decode_capacity, pool_decode_time, lone_prompt_time):
    """Requests per second that the loop serves at most: those of the prefill pool, and of clients that never queue.

    Whatever batch runs, it is at most a tabulated one and ends no more than that, or its steps take as long at least.
    """
    unqueued = active_clients / (pool_decode_time + lone_prompt_time)
    return xp.minimum(prefill_limit, smallest(xp.maximum(decode_capacity, unqueued), "load"))


@alternative(of="prompt_rate", by="batch_rule", label="rate", unit="1/s", source="little1961",
             others={"clients": "loop_rate_bound"})  # fmt: skip
def rate_prompt_rate(request_rate, prefill_limit):
    """Prompts per second of the prefill pool: those that arrive, at most as many as it computes."""
    return xp.minimum(request_rate, prefill_limit)


@formula(unit="s", source="zhong2024distserve")
def servers_time(front_end_time, decode_front_end_time):
    """Time of a request outside the passes: the server of each pool receives it."""
    return front_end_time + decode_front_end_time


@formula(unit="s", source="reiser1980mva")
def loop_other_time(prompt_time, running_pass_wait, exposed_transfer_time, servers_time, pool_decode_time):
    """Time of a request from answer to answer without the wait behind other prompts, by load."""
    return servers_time + running_pass_wait + prompt_time + exposed_transfer_time + pool_decode_time


@formula(unit="s", source="reiser1980mva")
def loop_queue_by_batch(loop_other_time, active_clients, prompt_slot, prompt_variation):
    """Wait y behind other prompts in the loop, by load of the decode pool: y² + y·(Z - K) = K·r.

    Z is all other time of a request, K the service of all other clients, r the mean rest of a service.
    """
    others, rest = (active_clients - 1) * prompt_slot, prompt_slot * (1 + prompt_variation**2) / 2
    gap = others - loop_other_time
    return (gap + xp.sqrt(gap**2 + 4 * others * rest)) / 2


@formula(unit="s", source="little1961")
def loop_queue_time(active_clients, served_rate, loop_other_time, load_weight):
    """Time that clients queue for either pool: what Little's law leaves of a cycle."""
    other = total(loop_other_time * load_weight, "load")
    return xp.maximum(active_clients / served_rate - other, 0.0)


@formula(unit="s", source="little1961")
def loop_place_time(
    loop_queue_time,
    loop_queue_by_batch,
    decode_capacity,
    decode_target,
    served_rate,
    prompt_slot,
    prefill_workers,
    prompt_variation,
):
    """Time that clients queue for a place: all but an open queue's wait where the decode pool is full."""
    full = at(decode_capacity, load=NODES[-1]) < at(decode_target, load=NODES[-1])
    prompts = wait_behind(served_rate, prompt_slot, prefill_workers, prompt_variation)
    queued = xp.minimum(prompts, at(loop_queue_by_batch, load=NODES[-1]))
    return xp.where(full, xp.maximum(loop_queue_time - queued, 0.0), 0.0)


@formula(unit="s", source="bailey1954bulk")
def starting_pass_time(
    active_clients, prefill_workers, full_pass_prompts, full_pass_time, lone_pass_time, further_prompt_time
):
    """Mean time until passes of prompts that come together end: full ones one after the other, or a single one."""
    each = xp.maximum(active_clients / prefill_workers, 1.0)
    single = lone_pass_time + further_prompt_time * (each - 1)
    several = (each / full_pass_prompts + 1) / 2 * full_pass_time
    return xp.where(each > full_pass_prompts, several, single)
