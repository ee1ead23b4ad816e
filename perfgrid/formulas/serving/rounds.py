"""Closed loops of clients: the distribution of what their requests wait for.

The requests of the beginning (``crowd``) get their first tokens pass after pass. A later request waits for the step
under way and for the prompts of clients whose answers end at about the same time, as many as chance makes them
(Poisson), and for a place if there are more clients than places.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import at, table

from .arrivals import moments
from .clients import LOOP
from .distributions import added, packed


@formula(unit="1", source="little1961")
def beginning_share(starting_share, rounds_begin_together):
    """Part of the requests that come together: those of the beginning, or all where every round begins together."""
    return xp.maximum(starting_share, rounds_begin_together)


@formula(unit="1", source="little1961")
def prompts_before(request_prefill_time, decode_steps, decode_step_time, replica_batch):
    """Prompts of others that a later request of the loop waits for, on average (see `clients`)."""
    prompt, step = at(request_prefill_time, load=LOOP), at(decode_step_time, load=LOOP)
    others = xp.maximum(at(replica_batch, load=LOOP) - 1, 0.0)
    cycle = prompt / (prompt + decode_steps * step)
    return others * cycle * (1 + cycle) / 2


@alternative(of="arrival_share", by="batch_rule", label="clients", unit="1", source="little1961")
def clients_arrival_share(beginning_share, prompts_before):
    """Part of the requests that wait for a step, for other prompts, or with all others in the beginning, by arrival."""
    later, none = 1 - beginning_share, xp.exp(-prompts_before)
    return table(
        "arrival", idle=0.0 * later, step=later * none, prompts=later * (1 - none), crowd=beginning_share + 0.0 * none
    )


@formula(unit="s", source="yu2022orca")
def awaited_step_time(decode_step_time, batch_groups, replica_batch, decode_steps):
    """Time of the step that a later request of the loop waits for: of one group, if there are other clients."""
    others = xp.minimum(xp.maximum(at(replica_batch, load=LOOP) - 1, 0.0), 1.0)
    return xp.where(decode_steps > 0, others, 0.0) * at(decode_step_time, load=LOOP) / at(batch_groups, load=LOOP)


def rows_of_prompts(count, time, second, third):
    """Moments of the time of a random number of prompts (Poisson) where there is at least one of them."""
    some = xp.maximum(1 - xp.exp(-count), 1e-6)
    mean, square = count * time / some, (count * second + count**2) * time**2 / some
    cube = (count * third + 3 * count**2 * second + count**3) * time**3 / some
    return mean, xp.maximum(square - mean**2, 0.0), xp.maximum(cube - 3 * mean * square + 2 * mean**3, 0.0)


@formula(unit="s", source="little1961")
def place_round(active_clients, tabulated_batch, request_capacity):
    """Time in which as many requests end as there are clients without a place."""
    return (active_clients - at(tabulated_batch, load=LOOP)) / at(request_capacity, load=LOOP)


@formula(unit="1", source="little1961")
def placeless_share(active_clients, tabulated_batch):
    """Part of the clients that have no place in the beginning."""
    return 1 - at(tabulated_batch, load=LOOP) / active_clients


@alternative(of="arrival_wait", by="batch_rule", label="clients", unit="s", source="little1961")
def clients_arrival_wait(
    prompts_before,
    request_prefill_time,
    prefill_moment,
    awaited_step_time,
    prefill_load,
    place_round,
    placeless_share,
    output_variation,
    active_clients,
    starting_time,
    starting_pause,
    prefill_time,
):
    """Wait of a request before its prefill, by arrival and statistic.

    Passes of the beginning end evenly from the first to the last; places become free one after the other.
    """
    second, third, _ = moments(prefill_moment)
    prompts = rows_of_prompts(prompts_before, at(request_prefill_time, load=LOOP), second, third)
    decoding = 1 - xp.minimum(prefill_load, 1.0)
    none = 0.0 * awaited_step_time**3
    step = (awaited_step_time, 0.0 * awaited_step_time**2, none)
    between = (decoding * awaited_step_time, decoding * (1 - decoding) * awaited_step_time**2, none)
    ends = output_variation**2 / xp.maximum(placeless_share * active_clients, 1.0)
    place = (place_round, ends * place_round**2, none)
    first = (xp.maximum(starting_time - at(prefill_time, load=LOOP), 0.0), starting_pause**2 / 3, none)
    half, square = placeless_share / 2 * place_round, placeless_share / 3 * place_round**2
    places = (half, square - half**2, none)
    return table(
        "arrival",
        idle=packed(*step),
        step=packed(*added(step, place)),
        prompts=packed(*added(between, prompts, place)),
        crowd=packed(*added(first, places)),
    )


# ---- answers --------------------------------------------------------------------------------------------------------


@formula(unit="s", source="little1961")
def held_prompt_time(request_prefill_time, prompts_before, replica_batch):
    """Time of prompts that hold up the mean answer of the loop: one of each other client, but those it waited for."""
    others = xp.maximum(at(replica_batch, load=LOOP) - 1, 0.0)
    return xp.maximum(others - prompts_before, 0.0) * at(request_prefill_time, load=LOOP)


def held(steps, share, prompt, second, variation):
    """Three moments of the time of steps and prompts: each of them comes once, sooner or later as lengths vary."""
    return steps + share, share * prompt * (second - 1 + variation), 0.0 * steps**3


@alternative(of="free_answer_time", by="batch_rule", label="clients", unit="s", source="little1961")
def clients_free_answer_time(
    held_prompt_time,
    request_prefill_time,
    prefill_moment,
    decode_step_time,
    answer_steps,
    decode_steps,
    output_variation,
):
    """Time of an answer of the loop after its first token, by length and statistic: prompts come as it goes on."""
    relative = answer_steps / xp.maximum(decode_steps, 1.0)
    chance = output_variation**2 + xp.maximum(1 - relative, 0.0)
    prompt, (second, _, _) = at(request_prefill_time, load=LOOP), moments(prefill_moment)
    steps = at(decode_step_time, load=LOOP) * answer_steps
    return packed(*held(steps, held_prompt_time * relative, prompt, second, chance))


@alternative(of="crowd_answer_time", by="batch_rule", label="clients", unit="s", source="little1961")
def clients_crowd_answer_time(
    held_prompt_time,
    starting_pause,
    request_prefill_time,
    prefill_moment,
    decode_step_time,
    answer_steps,
    decode_steps,
    output_variation,
    rounds_begin_together,
):
    """Time of an answer of the beginning after its first token, by length and statistic.

    All passes of the beginning hold it up that follow its own, evenly from none to all, and prompts of later requests
    as far as answers differ: of the shorter ones, on average half of them.
    """
    relative = answer_steps / xp.maximum(decode_steps, 1.0)
    later = xp.minimum(output_variation * 3**0.5, 1.0) * (1 - rounds_begin_together) * relative / 2
    prompt, (second, _, _) = at(request_prefill_time, load=LOOP), moments(prefill_moment)
    steps = at(decode_step_time, load=LOOP) * answer_steps
    pause = (starting_pause, starting_pause**2 / 3, 0.0 * starting_pause**3)
    return packed(*added(pause, held(steps, held_prompt_time * later, prompt, second, output_variation**2)))


@alternative(of="crowd_answer_share", by="batch_rule", label="clients", unit="1", source="little1961")
def clients_crowd_answer_share(beginning_share):
    """Part of the answers of the beginning."""
    return beginning_share
