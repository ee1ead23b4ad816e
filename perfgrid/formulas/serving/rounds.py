"""Closed loops of clients: the distribution of what their requests wait for.

The requests of the beginning (``crowd``) get their first tokens pass after pass. A later request waits for the step
under way and for the prompts of clients whose answers end at about the same time, as many as chance makes them
(Poisson), and for a place if there are more clients than places.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import at, table

from .admission import spread_evenly
from .arrivals import by_arrival
from .clients import LOOP
from .distributions import added, answer
from .met_iterations import moments, own_prefill


@formula(unit="1", source="little1961")
def beginning_share(starting_share, rounds_begin_together):
    """Part of the requests that come together: those of the beginning, or all where every round begins together."""
    return xp.maximum(starting_share, rounds_begin_together)


@formula(unit="1", source="little1961")
def loop_arrival_share(beginning_share, group_wait_share):
    """Part of the requests that wait for a step, for prompts before, or with all in the beginning, by arrival."""
    later, beginning = 1 - beginning_share, beginning_share + 0.0 * group_wait_share
    step = later * (1 - group_wait_share)
    return table("arrival", idle=0.0 * step, step=step, prompts=later * group_wait_share, crowd=beginning)


def some_prompts(count, time, second, third):
    """Moments of the time of a random number of prompts (Poisson) where there is at least one of them."""
    some = xp.maximum(1 - xp.exp(-count), 1e-6)
    mean, square = count * time / some, (count * second + count**2) * time**2 / some
    cube = (count * third + 3 * count**2 * second + count**3) * time**3 / some
    return mean, xp.maximum(square - mean**2, 0.0), xp.maximum(cube - 3 * mean * square + 2 * mean**3, 0.0)


@formula(unit="s", source="little1961")
def place_round(active_clients, loop_batch, request_capacity):
    """Time in which as many requests end as there are clients that do not run."""
    return (active_clients - loop_batch) / at(request_capacity, load=LOOP)


@formula(unit="1", source="little1961")
def placeless_share(active_clients, loop_batch):
    """Part of the clients that do not run in the beginning."""
    return 1 - loop_batch / active_clients


@formula(unit="s", source="little1961, lepikhin2021gshard")
def loop_prompt_time(request_prefill_time, lockstep_ranks):
    """Time for which one prompt of the loop holds up all replicas in lockstep."""
    return at(request_prefill_time, load=LOOP) / lockstep_ranks


@formula(unit="s", source="little1961")
def loop_prefill_sojourn(
    ends_in_step,
    own_group_share,
    loop_prompt_time,
    lockstep_ranks,
    prefill_moment,
    awaited_step_time,
    loop_held_time,
    place_round,
    placeless_share,
    output_variation,
    active_clients,
    starting_time,
    starting_pause,
    prefill_time,
    mean_prefill_ratio,
    pass_prompts,
    next_prompt_time,
    in_step,
    met_wait,
    pass_wait,
):
    """Time of a request from its arrival to the end of its prefill, by arrival and statistic.

    Passes of the beginning end evenly from the first to the last; places become free one after the other.
    """
    ends, (second, third, _) = ends_in_step * lockstep_ranks, moments(prefill_moment)
    waited = xp.where(met_wait > 0, pass_wait / xp.where(met_wait > 0, met_wait, loop_prompt_time), 1.0)
    before = some_prompts(ends, waited * loop_prompt_time, second, third)
    part = waited * own_group_share * loop_prompt_time
    group = (ends * part, ends * (second - in_step) * part**2, ends * third * part**3)
    none = 0.0 * awaited_step_time**3
    step = (waited * awaited_step_time, 0.0 * awaited_step_time**2, none)
    hold = spread_evenly(loop_held_time)
    apart = output_variation**2 / xp.maximum(placeless_share * active_clients, 1.0)
    place = (place_round, apart * place_round**2, none)
    first = (xp.maximum(starting_time - at(prefill_time, load=LOOP), 0.0), starting_pause**2 / 3, none)
    half, square = placeless_share / 2 * place_round, placeless_share / 3 * place_round**2
    places = (half, square - half**2, none)
    held = added(group, place, hold)
    others = xp.maximum(at(pass_prompts, load=LOOP) - 1, 0.0)
    other = at(next_prompt_time, load=LOOP) * mean_prefill_ratio
    own = own_prefill(at(prefill_time, load=LOOP), mean_prefill_ratio, prefill_moment, others, other)
    return by_arrival(own, step, added(step, held), added(before, held), added(first, places))


# ---- answers --------------------------------------------------------------------------------------------------------


@formula(unit="s", source="little1961")
def loop_free_answer_time(
    held_prompt_time, loop_prompt_time, prefill_moment, loop_step_time, decode_steps, output_variation
):
    """Time of an answer of the loop after its first token, by piece: prompts of others come as it goes on."""
    second, _, _ = moments(prefill_moment)
    spread = held_prompt_time * loop_prompt_time * (second - 1 + output_variation**2)
    steps = loop_step_time * xp.maximum(decode_steps, 1.0)
    return answer(steps + held_prompt_time, 0.0, spread_each=spread)


@formula(unit="1", source="little1961")
def later_prompts_share(output_variation, rounds_begin_together):
    """Part of the prompts of later requests that hold up an answer of the beginning: as far as answers differ.

    The shorter ones end before it, and the prompts that follow them come: on average half of them.
    """
    return xp.minimum(output_variation * 3**0.5, 1.0) * (1 - rounds_begin_together) / 2


@formula(unit="s", source="little1961")
def loop_crowd_answer_time(
    held_prompt_time,
    starting_hold,
    loop_prompt_time,
    prefill_moment,
    loop_step_time,
    decode_steps,
    output_variation,
    later_prompts_share,
):
    """Time of an answer of the beginning after its first token, by piece.

    All passes of the beginning hold it up that follow its own, evenly from none to all, and some of later requests.
    """
    second, _, _ = moments(prefill_moment)
    spread = later_prompts_share * held_prompt_time * loop_prompt_time * (second - 1 + output_variation**2)
    steps = loop_step_time * xp.maximum(decode_steps, 1.0)
    once = starting_hold**2 / 3
    return answer(steps + later_prompts_share * held_prompt_time, starting_hold, spread_each=spread, spread_once=once)
