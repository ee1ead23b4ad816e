"""Random arrivals: what a request meets, and how long it waits for it.

An arrival finds a server ``idle``, in an iteration of steps alone (``step``), or in one with other ``prompts``, behind
which there may be more than it has room for, a queue with one server (M/G/1); or as many sequences run as there are
places (``crowd``). Sequences come and go like a birth-death chain. Where a batch b ends b/(n·T(b)) answers per second
of steps, the number of them that run has the variance b·I/a: a is the slope of the logarithm of that rate by that of b
(1: sequences do not slow each other down), and I the dispersion of arrivals, more than 1 because prompts that are
computed one after the other start decoding together. The part of the time in which all places are taken follows as for
many servers (Halfin and Whitt 1981).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import bind
from perfgrid.formulas.axes import INNER, at, table, total

from .admission import spread_evenly
from .batching import NODES, ONE_BATCH
from .distributions import added, mixed, normal_density, normal_share, packed, unpacked
from .met_iterations import moments, own_prefill
from .pipeline_groups import log_slopes

ARRIVALS = INNER.labels["arrival"]
MOST_LOAD = 0.99  # beyond it a design is flagged, and waits are those at this load


# ---- prompts --------------------------------------------------------------------------------------------------------


@formula(unit="1", source="kleinrock1975queueing")
def prompt_load(offered_rate, dp, prompt_slot_time):
    """Prompts that come over those that a replica computes whose iterations are filled with them."""
    return xp.minimum(offered_rate / dp * prompt_slot_time, MOST_LOAD)


@formula(unit="1", source="kleinrock1975queueing")
def prefill_moment(prefill_ratio, length_weight, mean_prefill_ratio):
    """Moments of the time of a prompt about zero over powers of its mean, by moment."""
    over = prefill_ratio / mean_prefill_ratio
    square = over * over
    second, third, fourth = (total(length_weight * p, "length") for p in (square, square * over, square * square))
    return table("moment", second=second, third=third, fourth=fourth)


@formula(unit="1", source="sakasegawa1977")
def prompt_servers(lockstep_ranks, random_routing):
    """Replicas in lockstep that share a queue of prompts: all, unless a router sends prompts to any of them."""
    return xp.where(random_routing, 1.0, lockstep_ranks)


def several_servers(load, servers):
    """Wait in a queue with so many servers over that with one, r^(√(2(n + 1)) - 2)/n (Sakasegawa 1977)."""
    return xp.exp(xp.log(xp.maximum(load, 1e-30)) * (xp.sqrt(2 * (servers + 1)) - 2)) / servers


def prompt_queue(load, servers, time, second, third, fourth):
    """Mean, variance and third central moment of the wait of all requests in a queue with so many servers.

    By Takács' recursion (Kleinrock 1975, section 5.7) with one.
    """
    part = load / (1 - load) * several_servers(load, servers)
    mean = part * second / 2
    square = 2 * mean**2 + part * third / 3
    cube = part * (1.5 * second * square + third * mean + fourth / 4)
    return time * mean, time**2 * (square - mean**2), time**3 * (cube - 3 * mean * square + 2 * mean**3)


def rest_of(time, second, third, fourth):
    """The same of the rest of a time that is met while it runs: the k-th moment is E(t^(k + 1))/((k + 1)·E(t))."""
    mean, square, cube = second / 2, third / 3, fourth / 4
    return time * mean, time**2 * (square - mean**2), time**3 * (cube - 3 * mean * square + 2 * mean**3)


# ---- places ---------------------------------------------------------------------------------------------------------


@formula(unit="1", source="kwon2023vllm")
def places(most_sequences, dp):
    """Sequences that one replica can run at once."""
    return most_sequences / dp


FORMULAS = bind(
    log_slopes,
    "step_growth",
    "decode_step_time rate_tabulated_batch",
    "1",
    "halfin1981",
    "Slope of the logarithm of the time of a step by that of the batch, by load.",
)


@formula(unit="1", source="halfin1981")
def batch_gain(met_step_growth, busy_share, prompting_time_share, turn_share):
    """Slope a of the logarithm of the answers per second by that of the batch, at the batch that runs.

    Of the time from step to step, prompts take a part u, which grows by e·u if the whole does: e is 1 where they are
    computed in turn, and a·(1 - q)/q where they share the iterations, a part q = 1 - exp(-a) of which holds some.
    """
    share = xp.minimum(xp.maximum(prompting_time_share, 1e-6), 0.99)
    grows = turn_share + (1 - turn_share) * -xp.log1p(-share) * (1 - share) / share
    return xp.minimum(xp.maximum(1 - met_step_growth * (1 - busy_share) / (1 - grows * busy_share), 0.05), 1.0)


@formula(unit="1", source="kleinrock1975queueing")
def arrival_dispersion(prompt_load, prefill_moment, output_variation, places, prompts_beside_steps, lockstep_ranks):
    """Variance over mean of the sequences that run if they do not slow each other down: 1 but for prompts in a row.

    So many prompts K are computed in a row that K² is on average (u(1 - u) + u²s)/(1 - u)³ + 1/(1 - u)², with the load
    u and the second moment s, at most as many as there are places, shared out among replicas in lockstep. Answers of
    different lengths end apart, which evens that out. Mixed iterations have no such rows.
    """
    u, (second, _, _) = prompt_load, moments(prefill_moment)
    row = xp.minimum((u * (1 - u) + u**2 * second) / (1 - u) ** 2 + 1 / (1 - u), places)
    return 1 + (1 - prompts_beside_steps) * (row - 1) / lockstep_ranks / (1 + output_variation**2)


@formula(unit="1", source="little1961")
def replica_sequences(met_batch, occupied_share):
    """Sequences that run on a replica, on average; at low rates fewer than one."""
    return met_batch * occupied_share


@formula(unit="1", source="little1961")
def server_sequences(replica_sequences, lockstep_ranks):
    """Sequences that run on average on replicas in lockstep, which serve together whoever comes."""
    return replica_sequences * lockstep_ranks


@formula(unit="1", source="kwon2023vllm")
def server_places(places, lockstep_ranks):
    """Sequences that replicas in lockstep can run at once."""
    return places * lockstep_ranks


@formula(unit="1", source="halfin1981")
def full_share(server_sequences, server_places, batch_gain, arrival_dispersion, load_fraction):
    """Part of the time of steps in which every place of a server is taken: 1/(1 + (1 - r)·(s·F(d)/f(d) - 1/3)).

    r is the load, s² = c·I/a the variance at c places, d the distance of the batch from c in standard deviations, by
    the ratio of the probabilities of the chain, F and f the normal distribution and its density; a third of a state
    lies between sums of whole numbers and the normal distribution (Ramanujan).
    """
    batch = xp.minimum(xp.maximum(server_sequences, 0.02), server_places * 0.999)
    square = (
        2 * batch_gain / arrival_dispersion * (server_places * xp.log(server_places / batch) - server_places + batch)
    )
    distance = xp.sqrt(xp.minimum(square, 144.0))
    below = xp.sqrt(server_places * arrival_dispersion / batch_gain) * normal_share(distance) / normal_density(distance)
    return 1 / (1 + (1 - xp.minimum(load_fraction, 1.0)) * xp.maximum(below - 1 / 3, 0.5))


@formula(unit="1", source="halfin1981")
def crowd_share(full_share, busy_share, load_fraction):
    """Part of the requests that find no place: those that come while all are taken, or in prefills in between."""
    load = xp.minimum(xp.maximum(load_fraction, 1e-6), 1.0)
    prefills = xp.minimum(busy_share / load, MOST_LOAD)  # part of the time of a full replica
    steps = full_share * (1 - busy_share)
    return xp.minimum(steps + xp.minimum(steps * prefills / (1 - prefills), busy_share), 0.999)


@formula(unit="1", source="kleinrock1975queueing")
def holding_variation(request_prefill_time, request_decode_time, prefill_moment, output_variation):
    """Squared coefficient of variation of the time of a full replica that a request takes."""
    second, _, _ = moments(prefill_moment)
    prompt, decoding = (at(time, load=NODES[-1]) for time in (request_prefill_time, request_decode_time))
    return (decoding**2 * output_variation**2 + prompt**2 * (second - 1)) / (decoding + prompt) ** 2


@formula(unit="s", source="cosmetatos1976")
def crowd_wait(largest_request_rate, load_fraction, holding_variation, dp, server_places, lockstep_ranks):
    """Mean wait for a place of those that find none: (1 + v² + (1 - v²)·e)/2 over what is served beyond the arrivals.

    e = (1 - r)·(c - 1)·(√(4 + 5c) - 2)/(16·r·c) for c places at the load r, as the first of several places is not free
    that much sooner.
    """
    load = xp.minimum(xp.maximum(load_fraction, 1e-3), MOST_LOAD)
    several = (1 - load) * (server_places - 1) * (xp.sqrt(4 + 5 * server_places) - 2) / (16 * load * server_places)
    alike = xp.maximum(1 - holding_variation, 0.0)
    spare = largest_request_rate * lockstep_ranks / dp * (1 - load)
    return (1 + holding_variation + alike * xp.minimum(several, 1.0)) / (2 * spare)


def crowd_spread(load, variation, places):
    """Squared coefficient of variation and skewness of the wait for a place: 1 and 2 at a high load.

    At a low one that of the rest of one service, or of the least of several that are alike, c/(c + 2).
    """
    rest = 4 / 3 * (1 + 2 * variation) / (1 + variation) - 1  # of one service, as for a gamma distribution
    square = load + (1 - load) * (1 - 3 * (1 - rest) / (places + 2))
    return square, xp.minimum(xp.maximum(3 * square - 1, 0.0), 2.0)


def by_arrival(own, *waits):
    """The times from arrival to the end of the own prefill, after the wait of each kind of arrival."""
    return table("arrival", **{kind: packed(*added(wait, own)) for kind, wait in zip(ARRIVALS, waits, strict=True)})


# ---- what an arrival meets ------------------------------------------------------------------------------------------


@formula(unit="1", source="kleinrock1975queueing")
def idle_share(server_sequences, pp):
    """Part of the time in which the first stage of a server has no sequence, as without waits (M/G/∞)."""
    return xp.exp(-server_sequences / pp)


@alternative(of="arrival_share", by="batch_rule", label="rate", unit="1", source="kleinrock1975queueing",
             others={ONE_BATCH: "loop_arrival_share"})  # fmt: skip
def rate_arrival_share(crowd_share, prompting_time_share, idle_share):
    """Part of the requests that meet an idle replica, a step, other prompts, or no place, by arrival."""
    placed = 1 - crowd_share
    alone, prompts = placed * (1 - prompting_time_share), placed * prompting_time_share
    return table("arrival", idle=alone * idle_share, step=alone * (1 - idle_share), prompts=prompts, crowd=crowd_share)


@formula(unit="s", source="kleinrock1975queueing")
def step_under_way(met_decode_step_time, decode_steps, pp):
    """Time of the steps that arrivals meet in the first stage of a pipeline."""
    return xp.where(decode_steps > 0, met_decode_step_time / pp, 0.0)


def wait_for_step(step, hold):
    """Three moments of the wait for the end of a step at any time, and for a look at the prompts."""
    return added((step / 2, step**2 / 12, 0.0 * step**3), spread_evenly(hold))


def further_iterations(prompts, some, part, own, fixed):
    """Three moments of the time of iterations that a prompt needs because others come first, of so much each.

    ``prompts``: their mean number, of which there are any with the chance ``some``, ``part`` of an iteration each.
    Where there are, they are exponentially distributed. The own prompt leaves a gap of own - part in its last
    iteration: the first further one comes with the chance exp(-gap/mean), each other one with exp(-1/mean).
    """
    mean = xp.maximum(prompts * part / xp.where(some > 0, some, 1.0), 1e-3)
    first = some * xp.exp(-xp.maximum(own - part, 0.0) / mean)
    rare = xp.minimum(first, 1.0) * (1 - xp.minimum(first, 1.0))
    return fixed * first / (1 - xp.exp(-1 / mean)), fixed**2 * rare, fixed**3 * rare * (1 - 2 * first)


@formula(unit="s", source="kleinrock1975queueing, agrawal2024sarathi")
def step_wait(
    step_under_way,
    rate_held_time,
    queued_iteration_time,
    offered_rate,
    dp,
    lockstep_ranks,
    prompt_part,
    own_iterations,
    iteration_fixed_time,
):
    """Wait of a request that meets a step alone, by statistic: for its end, and for prompts that came in it before."""
    before = offered_rate / dp / lockstep_ranks * step_under_way / 2
    further = further_iterations(
        before, -xp.expm1(-before), prompt_part, at(own_iterations, whose="own"), iteration_fixed_time
    )
    queued = (at(queued_iteration_time, whose="own"), 0.0, 0.0)
    return packed(*added(wait_for_step(step_under_way, rate_held_time), queued, further))


@formula(unit="s", source="kleinrock1975queueing, agrawal2024sarathi")
def prompts_wait(
    prompting_iteration_time,
    iteration_moment,
    prompt_load,
    prompt_servers,
    prompt_slot_time,
    prefill_moment,
    prompts_ahead,
    prompt_part,
    own_iterations,
    iteration_fixed_time,
    queued_iteration_time,
    rate_held_time,
):
    """Wait of a request that meets an iteration with prompts, by statistic: for its end, and for prompts before it.

    Those of the queue take their part of full iterations each, ends of which its own prompt has to meet.
    """
    iteration = rest_of(prompting_iteration_time, *moments(iteration_moment))
    queue = prompt_queue(prompt_load, prompt_servers, prompt_slot_time, *moments(prefill_moment))
    left = prompts_ahead * prompt_slot_time
    prompts = prompts_ahead + queue[0] / prompt_slot_time
    some = 1 - (1 - prompt_load) * xp.exp(-prompts_ahead)
    mean, *rest = further_iterations(prompts, some, prompt_part, at(own_iterations, whose="own"), iteration_fixed_time)
    shared = prompts * prompt_part * iteration_fixed_time  # which their part of an iteration has
    waits = (
        iteration,
        queue,
        (left, left**2, 2 * left**3),
        (mean - shared, *rest),
        (at(queued_iteration_time, whose="some"), 0.0, 0.0),
    )
    return packed(*added(*waits, spread_evenly(rate_held_time)))


@formula(unit="s", source="kleinrock1975queueing")
def free_wait(prompting_time_share, idle_share, step_wait, prompts_wait):
    """Wait before its prefill of a request that finds a place, by statistic."""
    alone = 1 - prompting_time_share
    parts = [
        (alone * idle_share, 0.0, 0.0, 0.0),
        (alone * (1 - idle_share), *unpacked(step_wait)),
        (prompting_time_share, *unpacked(prompts_wait)),
    ]
    return packed(*mixed(parts))


@alternative(of="prefill_sojourn", by="batch_rule", label="rate", unit="s", source="kleinrock1975queueing",
             others={ONE_BATCH: "loop_prefill_sojourn"})  # fmt: skip
def rate_prefill_sojourn(
    step_wait,
    prompts_wait,
    crowd_wait,
    load_fraction,
    holding_variation,
    server_places,
    rate_first_time,
    mean_prefill_ratio,
    prefill_moment,
    met_other_prompts,
    met_next_prompt_time,
    occupied_share,
    lockstep_ranks,
):
    """Time of a request from its arrival to the end of its prefill, by arrival and statistic."""
    square, skewness = crowd_spread(xp.minimum(load_fraction, MOST_LOAD), holding_variation, server_places)
    spread = crowd_wait * xp.sqrt(square)
    crowd = (crowd_wait, spread**2, skewness * spread**3)
    others = occupied_share * met_other_prompts * lockstep_ranks
    other = met_next_prompt_time * mean_prefill_ratio
    own = own_prefill(rate_first_time, mean_prefill_ratio, prefill_moment, others, other, lockstep_ranks)
    step = unpacked(step_wait)
    return by_arrival(own, [0.0 * one for one in step], step, unpacked(prompts_wait), crowd)
