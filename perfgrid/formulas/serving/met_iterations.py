"""The iterations that a request meets: those that compute its prompt, and those that run when it arrives.

Tables by load are read at the batch that random arrivals meet (`tabulated`).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import at, table, total

from .batching import NODES, ONE_BATCH
from .latency import WHOLE, in_pass
from .requests import LEAST_BUDGET
from .tabulated import at_batch


@formula(unit="s", source="little1961")
def iteration_time(decode_step_time, request_prefill_time, replica_batch, decode_steps, place_steps):
    """Mean time from step to step of a running sequence, prompts included: of b sequences of n steps b/n begin."""
    step = xp.where(decode_steps > 0, decode_step_time, 0.0)
    return step + request_prefill_time * replica_batch / xp.maximum(place_steps, 1.0)


@formula(unit="s", source="yu2022orca")
def lone_first_time(
    prefill_time,
    started_passes,
    prompting_rounds,
    lockstep_ranks,
    crowded_added_time,
    decode_step_time,
    going_on,
    decode_steps,
):
    """Time of the iterations that compute a prompt, by load.

    The last one of a prompt, which it does not fill, lasts as long as those of other replicas in lockstep, which are
    met the more often the longer they are.
    """
    rounds = xp.minimum(prompting_rounds, 1.0)
    with_prompts = rounds * (going_on * decode_step_time + crowded_added_time)
    others = with_prompts / (with_prompts + (1 - rounds) * decode_step_time)
    lone = at(prefill_time, load=NODES[0])
    queued = xp.where(decode_steps > 0, 0.0, (prefill_time - lone) / (2 * lockstep_ranks))
    return prefill_time - queued + started_passes * others * (1 - 1 / lockstep_ranks) * crowded_added_time


@formula(unit="s", source="agrawal2024sarathi")
def others_added_time(added_time, crowded_added_time):
    """Time that more prompts add to an iteration than come in a step, by load."""
    return crowded_added_time - added_time


@formula(unit="1", source="agrawal2024sarathi")
def turn_share(met_further_share, lockstep_ranks):
    """Part of the time of prompts for which they are computed in turn: others of an iteration take none of their own.

    Nor do those of other replicas in lockstep.
    """
    return met_further_share / lockstep_ranks


@formula(unit="1", source="kleinrock1975queueing")
def other_prompts(prefill_sequences, crowding, lockstep_ranks):
    """Prompts of others that an iteration computes beside one, on its replica, by load."""
    return xp.maximum(prefill_sequences * crowding - 1, 0.0) / lockstep_ranks


@formula(unit="s", source="agrawal2024sarathi")
def next_prompt_time(added_time, further_share, prefill_sequences):
    """Time that one more prompt adds to an iteration, by load."""
    return added_time * further_share / prefill_sequences


@alternative(of="first_time", by="batch_rule", label=ONE_BATCH, unit="s", source="pope2022inference")
def LABEL_first_time(prefill_time):
    """Time of the iterations that compute the prompts that a request waits for."""
    return at(prefill_time, load=NODES[0])


@alternative(of="first_time", by="batch_rule", label="rate", unit="s", source="yu2022orca")
def rate_first_time(
    first_batch, lone_first_time, lone_first_time_slope, node_batch, met_others_added_time, occupied_share
):
    """Time of the iterations that compute a prompt, beside the batch that arrivals meet, if any, and other prompts."""
    alone = at_batch(first_batch, lone_first_time, lone_first_time_slope, node_batch)
    return alone + occupied_share * met_others_added_time


@formula(unit="1", source="agrawal2024sarathi, bailey1954bulk")
def first_batch(met_batch, prompts_beside, lockstep_ranks, decode_steps):
    """Sequences of a replica in the iterations that compute a prompt: the batch; where no steps are taken, prompts."""
    return xp.where(decode_steps > 0, met_batch, (1 + prompts_beside) / lockstep_ranks)


@formula(unit="1", source="bailey1954bulk")
def prompts_beside(offered_rate, dp, lockstep_ranks, met_crowded_added_time, added_variation, occupied_share, pp):
    """Prompts that come while the iteration runs that an arrival meets: longer ones are met more often."""
    server = offered_rate / dp * lockstep_ranks
    return server * occupied_share * met_crowded_added_time / pp * (1 + added_variation)


@formula(unit="s", source="kleinrock1975queueing")
def round_hold_time(crowded_added_time, prefill_passes, mean_prefill_ratio):
    """Time for which prompts of a round hold up steps, by load."""
    return crowded_added_time * prefill_passes * mean_prefill_ratio


@formula(unit="s", source="agrawal2024sarathi")
def filled_prefill_time(
    added_time, further_prompts_ratio, pass_time, prefill_sequences, prefill_passes, prompt_room, stage_share
):
    """Time that one of as many prompts as there is room for adds to an iteration of the fullest stage."""
    prompts = xp.maximum(prompt_room, prefill_sequences)
    lone = at(in_pass(pass_time, "prefill"), load=NODES[0])
    return (added_time + at(further_prompts_ratio, further="full") * lone) * prefill_passes / prompts * stage_share


@formula(unit="s", source="agrawal2024sarathi")
def prompt_slot_time(
    met_filled_prefill_time, step_under_way, prompts_beside_steps, computed_prompt_tokens, iteration_room
):
    """Time from prompt to prompt of a replica whose iterations are filled with prompts: their part of a full one."""
    return met_filled_prefill_time + prompts_beside_steps * step_under_way * computed_prompt_tokens / iteration_room


@formula(unit="1", source="agrawal2024sarathi")
def iteration_room(prefill_chunk_tokens, cp, met_batch, step_tokens, pp):
    """Prompt tokens for which an iteration has room beside the steps of the batch that arrivals meet."""
    room = prefill_chunk_tokens * cp
    return xp.maximum(room - met_batch / pp * step_tokens, LEAST_BUDGET * room)


@formula(unit="1", source="agrawal2024sarathi")
def met_going_on(
    prompts_beside_steps, lockstep_ranks, met_crowded_added_time, step_under_way, rate_first_time, own_iterations
):
    """Part of the steps that go on in an iteration with prompts: beside them, or of ranks in lockstep without any.

    An iteration lasts a part of the time to the own first token, of which prompts add what no steps take.
    """
    iteration = rate_first_time / at(own_iterations, whose="own")
    without = (iteration - met_crowded_added_time) / xp.maximum(step_under_way, 1e-9 * iteration)
    without = xp.where(lockstep_ranks > 1, xp.minimum(xp.maximum(without, 0.0), 1.0), 0.0)
    return prompts_beside_steps + (1 - prompts_beside_steps) * without


@formula(unit="1", source="narayanan2021")
def away_share(met_batch, pp):
    """Part of the other groups of a pipeline that are under way, so that an arrival has to wait for one of them."""
    return xp.where(pp > 1, xp.minimum(xp.maximum(met_batch - 1, 0.0) / xp.maximum(pp - 1, 1.0), 1.0), 0.0)


def blocked_times(added, step, beside, pp):
    """Times for which an iteration with prompts lets no group begin: where one is free for it, and where none is.

    The first stage is free after a p-th of it. Groups before it come out of the last stage at the pace of steps, a p-th
    of a step apart, and the next one is itself.
    """
    whole = added + beside * step * pp
    return whole / pp, xp.maximum(whole - (pp - 1) * step, whole / pp)


@formula(unit="s", source="agrawal2024sarathi, narayanan2021")
def prompting_iteration_time(met_crowded_added_time, step_under_way, met_going_on, pp, away_share):
    """Time for which an iteration with prompts lets no other begin: of a pipeline, until a group is free for one."""
    first, later = blocked_times(met_crowded_added_time, step_under_way, met_going_on, pp)
    return (1 - away_share) * first + away_share * later


@formula(unit="1", source="kleinrock1975queueing")
def prompting_time_share(rate_prefill_load, added_share):
    """Part of the time in which an iteration with prompts runs."""
    return xp.minimum(rate_prefill_load / xp.maximum(added_share, 1e-9), 0.99)


@formula(unit="1", source="agrawal2024sarathi")
def added_share(met_crowded_added_time, prompting_iteration_time):
    """Part of an iteration with prompts that these add."""
    return met_crowded_added_time / prompting_iteration_time


@formula(unit="1", source="vllm2026async")
def prompts_follow(
    prompting_time_share, prompting_iteration_time, step_under_way, own_iterations, offered_rate, dp, lockstep_ranks
):
    """Chance that the iteration put together ahead holds prompts, by the one that runs: ``own`` steps alone, ``some``.

    What it holds has come before that one began, and so goes with the part q of all iterations that hold prompts,
    unless one of m prompts under way goes on, each of which is in n iterations: with the chance 1 - (1/n)^m.
    """
    prompting = prompting_time_share / prompting_iteration_time
    share = prompting / (
        prompting + (1 - prompting_time_share) / xp.maximum(step_under_way, 1e-9 * prompting_iteration_time)
    )
    passes = at(own_iterations, whose="own")
    prompts = xp.maximum(offered_rate / dp * lockstep_ranks * passes / prompting, 1.0)
    goes_on = -xp.expm1(-prompts * xp.log(passes))
    return table("whose", own=share * (1 - goes_on), some=goes_on + (1 - goes_on) * share)


@formula(unit="s", source="vllm2026async")
def queued_iteration_time(step_under_way, met_crowded_added_time, met_going_on, prompts_follow, rounds_ahead):
    """Time of the iteration that is put together while another one runs, by that, where the host works ahead."""
    step = step_under_way
    return rounds_ahead * (step + prompts_follow * (met_crowded_added_time - (1 - met_going_on) * step))


# ---- prompts ahead --------------------------------------------------------------------------------------------------


@formula(unit="1", source="agrawal2024sarathi")
def prompt_part(computed_prompt_tokens, iteration_room):
    """Tokens of a prompt over those for which an iteration has room."""
    return computed_prompt_tokens / iteration_room


@formula(unit="1", source="agrawal2024sarathi")
def own_iterations(prompt_ratio, length_weight, computed_prompt_tokens, prompt_budget, chunked_prompts, rounds_ahead):
    """Iterations that compute a prompt behind no other, ``own``, and prompts that one of them leaves over, ``some``.

    A prompt of x iterations is in n = ceil(x) of them. They leave x - 1, x - 2 and so on; where the next one is put
    together as well, x - 2, x - 3 and so on.
    """
    parts = computed_prompt_tokens / at(prompt_budget, load=NODES[len(NODES) // 2])
    each = prompt_ratio * parts
    passes = xp.where(chunked_prompts, xp.maximum(xp.ceil(each * (1 - WHOLE)), 1.0), 1.0)
    own = total(passes * length_weight, "length")
    leaving = xp.maximum(passes - 1 - rounds_ahead, 0.0)
    left = total(leaving * (each - rounds_ahead - (leaving + 1) / 2) * length_weight, "length")
    return table("whose", own=own, some=left / own / parts)


@formula(unit="1", source="kleinrock1975queueing, agrawal2024sarathi")
def prompts_ahead(own_iterations, lockstep_ranks):
    """Prompts before an arrival in an iteration with prompts that are neither computed in it nor in the queue.

    One of several ranks in lockstep takes an arrival that has none.
    """
    return at(own_iterations, whose="some") / lockstep_ranks


@formula(unit="s", source="agrawal2024sarathi")
def iteration_fixed_time(
    step_under_way,
    prompts_beside_steps,
    met_crowded_added_time,
    met_next_prompt_time,
    met_other_prompts,
    lockstep_ranks,
    pp,
):
    """Time of an iteration with prompts in a stage, however few they are."""
    prompts = (1 + met_other_prompts * lockstep_ranks) * met_next_prompt_time
    return prompts_beside_steps * step_under_way + xp.maximum(met_crowded_added_time - prompts, 0.0) / pp


def number_spread(mean, ranks):
    """Variance and third central moment of the prompts that others have in an iteration: a Poisson number of one rank.

    The largest of several such numbers is one of two that follow each other (Anderson 1970).
    """
    part = mean - xp.floor(mean)
    two = part * (1 - part)
    return xp.where(ranks > 1, two, mean), xp.where(ranks > 1, two * (1 - 2 * part), mean)


def own_prefill(first_time, mean_prefill_ratio, prefill_moment, others=0.0, other=0.0, ranks=1.0):
    """Three moments of the time in which the own prompt of a request is computed, beside a random number of others.

    ``first_time`` holds the mean number ``others`` of them, which take ``other`` each, of the busiest of ``ranks``.
    """
    own = first_time * mean_prefill_ratio
    second, third, _ = moments(prefill_moment)
    alone, (square, cube) = own - others * other, number_spread(others, ranks)
    lengths, leaning = second - 1, third - 3 * second + 2
    return (
        own,
        alone**2 * lengths + (others * lengths + square) * other**2,
        alone**3 * leaning + (others * leaning + 3 * square * lengths + cube) * other**3,
    )


def about_zero(square, cube):
    """Second to fourth moment about zero of a time of mean 1, by the central ones; the fourth as of a gamma one."""
    fourth = 3 * square**2 + 1.5 * cube**2 / xp.maximum(square, 1e-9)
    return 1 + square, 1 + 3 * square + cube, 1 + 6 * square + 4 * cube + fourth


@formula(unit="1", source="kleinrock1975queueing, anderson1970maxima")
def added_variation(
    met_crowded_added_time, met_next_prompt_time, met_other_prompts, lockstep_ranks, prefill_moment, own_iterations
):
    """Squared coefficient of variation of what prompts add to an iteration: of full ones of one prompt none."""
    others = met_other_prompts * lockstep_ranks
    _, square, _ = own_prefill(
        met_crowded_added_time, 1.0, prefill_moment, others, met_next_prompt_time, lockstep_ranks
    )
    return square / (met_crowded_added_time * at(own_iterations, whose="own")) ** 2


@formula(unit="1", source="kleinrock1975queueing, narayanan2021, anderson1970maxima")
def iteration_moment(
    prefill_moment,
    met_crowded_added_time,
    met_next_prompt_time,
    met_other_prompts,
    lockstep_ranks,
    step_under_way,
    met_going_on,
    pp,
    away_share,
    prompting_iteration_time,
):
    """Moments of this time about zero over powers of its mean, by moment: what prompts add varies, and their number."""
    others = met_other_prompts * lockstep_ranks
    _, square, cube = own_prefill(
        met_crowded_added_time, 1.0, prefill_moment, others, met_next_prompt_time, lockstep_ranks
    )
    first, later = blocked_times(met_crowded_added_time, step_under_way, met_going_on, pp)
    found = []
    for whole, part in ((first, 1 / pp), (later, 1.0)):
        each = about_zero(square * (part / whole) ** 2, cube * (part / whole) ** 3)
        found.append([(whole / prompting_iteration_time) ** n * one for n, one in enumerate(each, 2)])
    names = ("second", "third", "fourth")
    return table("moment", **{n: (1 - away_share) * x + away_share * y for n, x, y in zip(names, *found, strict=True)})


def moments(prefill_moment):
    """The second, third and fourth of them."""
    return (at(prefill_moment, moment=name) for name in ("second", "third", "fourth"))
