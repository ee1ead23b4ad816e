"""The iteration of an engine: steps and prompts that it computes at once, and who waits for whom.

An engine repeats an iteration, a pass over the sequences that run and over prompts that have come. Where iterations are
mixed, prompts are computed beside the steps of running sequences, and a prompt costs what it adds: T(b, c) - T(b, 0)
for c of its tokens beside b sequences. Elsewhere (``prefill_first``) prompts have passes of their own, while running
sequences wait. Of b sequences of n steps b/n end in an iteration, and as many prompts follow them.

What waits together pays together. Replicas in lockstep begin an iteration together and wait for the one with most to
do. Stages of a pipeline are first in, first out: an iteration with prompts holds up all groups behind it, once for all
that have prompts in the same round.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import at, only, table

from .admission import came_together
from .batching import NODES, ONE_BATCH, QUEUED, REPLACED, STARTED
from .latency import in_pass
from .lockstep import most_prompts
from .requests import ROUNDING

RATE_STEPS = 5  # of the search for a rate
FEWEST = 1e-6  # prompts of an iteration: of so few no two meet
UNBOUND = 1e9  # sequences of an engine whose prompts wait for no room
MOST_ROUNDS = 1 - 1e-6  # part of the rounds that hold prompts at most
LEAST_ADDED = 1e-3  # part of an iteration that prompts add at least: what they take is never nothing

# ---- what an iteration holds ----------------------------------------------------------------------------------------


@alternative(of="mixed_iterations", by="batch_rule", label=QUEUED, unit="1", source="agrawal2024sarathi",
             others={"given": 0.0})  # fmt: skip
def LABEL_mixed_iterations(prompts_beside_steps, other_sequences_share):
    """Part of the steps that run beside prompts in an iteration that holds some: none where all start together."""
    return prompts_beside_steps * other_sequences_share


@alternative(of="mixed_iterations", by="batch_rule", label=STARTED, unit="1", source="agrawal2024sarathi")
def LABEL_started_iterations(prompts_beside_steps, other_sequences_share):
    """Part of the steps that run beside prompts, by load: all in the loop, half while its beginning is computed."""
    return prompts_beside_steps * other_sequences_share * (1 - 0.5 * only("load", NODES[1]))


@formula(unit="1", source="reiser1980mva")
def other_sequences_share(replica_batch, lockstep_ranks):
    """Part of the running sequences that a prompt has beside itself."""
    return xp.maximum(1 - 1 / (replica_batch * lockstep_ranks), 0.0)


@formula(unit="1", source="agrawal2024sarathi, zheng2024sglang")
def prompts_beside_steps(prefill_first, decode_steps, prefilled):
    """1 where an iteration computes prompts beside steps: where there are any."""
    return xp.where(prefill_first, xp.where(prefilled, 1.0, 0.0), 1.0) * xp.where(decode_steps > 0, 1.0, 0.0)


@formula(unit="1", source="agrawal2024sarathi")
def whole_prompts(prefill_chunk_tokens, cp, computed_prompt_tokens, chunked_prompts):
    """Prompts of which an iteration without steps begins all: as many as it has room for, whole ones if not cut."""
    room = prefill_chunk_tokens * cp / computed_prompt_tokens
    return xp.maximum(xp.where(chunked_prompts, room, xp.floor(room * (1 + 1e-6))), 1.0)


@formula(unit="1", source="agrawal2024sarathi, yu2022orca")
def prompt_bound_batch(
    decode_steps,
    prefill_chunk_tokens,
    cp,
    computed_prompt_tokens,
    chunked_prompts,
    pp,
    dp,
    prompts_beside_steps,
    step_tokens,
):
    """Sequences of n steps whose prompts of c tokens mixed iterations of K have room for: n·K/(c + n) in each group.

    Of prompts that are not cut as many as k whole ones in each iteration keep running, k·n, or as leave room for k + 1.
    Where not even one of each iteration has room, as if they were cut: such engines are given more room.
    """
    room = prefill_chunk_tokens * cp
    prompts = room / (computed_prompt_tokens + decode_steps * step_tokens)
    whole = xp.floor(prompts)
    beside = (room * (1 - 2 * ROUNDING) - (whole + 1) * computed_prompt_tokens) / step_tokens
    kept = xp.maximum(decode_steps * whole, beside)
    most = xp.where(chunked_prompts | (whole < 1), decode_steps * prompts, kept)
    return dp * xp.where(prompts_beside_steps > 0, xp.maximum(pp * most, 1.0), UNBOUND)


# ---- prompts that come to it ----------------------------------------------------------------------------------------


@formula(unit="1", source="little1961, vllm2026async")
def place_steps(decode_steps, prompts_beside_steps, rounds_ahead, computed_prompt_tokens, prompt_budget):
    """Steps of others for which a request has a place: its own, those beside its prompt, and one put together ahead."""
    passes = xp.maximum(computed_prompt_tokens / prompt_budget, 1.0)
    beside = decode_steps + prompts_beside_steps * (passes + rounds_ahead)
    return xp.where(decode_steps > 0, beside, passes)


@formula(unit="1", source="little1961")
def iteration_arrivals(replica_batch, batch_groups, lockstep_ranks, place_steps):
    """Prompts that come while a group takes a step, to all replicas in lockstep: of b answers of n steps b/n end."""
    ended = replica_batch / batch_groups * lockstep_ranks / xp.maximum(place_steps, 1.0)
    return xp.maximum(ended, FEWEST)


@formula(unit="1", source="little1961")
def prompts_of_an_iteration(
    iteration_arrivals,
    prompts_in_lockstep,
    gathering_prompts,
    gathering_steps,
    polling_steps,
    place_steps,
    in_step,
    full_prompts,
):
    """Prompts that replicas in lockstep compute together where there is one: as stated, or of random arrivals.

    In step with each other, as many as there is room for.
    """
    come = came_together(polling_steps, gathering_prompts, gathering_steps, iteration_arrivals, place_steps)
    come = come + in_step * xp.maximum(full_prompts - come, 0.0)
    return xp.where(prompts_in_lockstep > 0, xp.maximum(prompts_in_lockstep, 1.0), come)


@formula(unit="1", source="agrawal2024sarathi")
def full_prompts(prompt_room, group_batch, busiest_replica_load, lockstep_ranks):
    """Prompts of an iteration that is full of them, of all replicas in lockstep: not more than sequences."""
    return xp.maximum(xp.minimum(prompt_room, group_batch / busiest_replica_load) * lockstep_ranks, 1.0)


@formula(unit="1", source="little1961")
def round_prompts(iteration_arrivals, batch_groups):
    """Prompts that come while every group of a pipeline takes a step, to all replicas in lockstep."""
    return iteration_arrivals * batch_groups


@formula(unit="1", source="little1961")
def alone_rounds(round_prompts, prompts_of_a_round):
    """Part of the rounds in which prompts begin where a prompt follows every answer that ends."""
    return round_prompts / prompts_of_a_round


def gathered(prompts, ranks, ratio, weight, room):
    """Prompts of the busiest of so many ranks that an iteration computes, in mean lengths: as it has room for them."""
    return xp.minimum(most_prompts(prompts, ranks, ratio, weight), room)


def part_of_iterations(each_step, stops):
    """Part of all iterations, from their number for each step; with ``stops`` these iterations hold no step."""
    return xp.minimum(each_step / (1 + stops * each_step), MOST_ROUNDS)


def iterations_with_prompts(begin, come, hit, prompts, held, places, apart, stops, groups=1.0):
    """Parts of the iterations that hold prompts of one place, and of any; a place is a group of a replica.

    New prompts come to an iteration with the chance B (``begin``), k of them (``come``) to h places (``hit``). A place
    computes at most m (``held``) of its k/h prompts at once. Of a prompts in each step of n places, one place has some
    in a/(n·min(k/h, m)) iterations, and any has in 1 - (1 - B)·(1 - f)^g: f = a/n·(1/m - h/k) are the iterations that
    prompts need beyond their first, in g places independently (``apart``). With ``stops`` a place takes no step then.
    They follow each other through a pipeline, in one of its rounds, unless its ``groups`` have no place for those of
    another.
    """
    each = xp.maximum(come / hit, 1.0)
    own = part_of_iterations(prompts / places / xp.minimum(each, held), stops)
    further = part_of_iterations(groups * prompts / places * xp.maximum(1 / held - 1 / each, 0.0), stops)
    none = xp.log1p(-xp.minimum(begin, MOST_ROUNDS)) + apart * xp.log1p(-further)
    return own, xp.maximum(-xp.expm1(none), own)


def hit_places(come, places):
    """Places that get some of so many prompts, which fall to them at random."""
    return places * (1 - xp.maximum(1 - 1 / places, FEWEST) ** come)


@formula(unit="1", source="agrawal2024sarathi")
def held_prompts(
    prompt_budget, prompt_room, chunked_prompts, computed_prompt_tokens, started_passes, prefill_passes, apart_ranks
):
    """Prompts of the mean length that a replica can compute in an iteration, whole ones where they are not cut.

    What a prompt leaves of its last one stays empty if no other waits there: at one replica of many in lockstep.
    """
    empty = started_passes / prefill_passes * (1 - 1 / apart_ranks)
    return xp.where(chunked_prompts, prompt_budget / computed_prompt_tokens, prompt_room) / (1 + empty)


@formula(unit="1", source="nvidia2025trtllmargs")
def apart_ranks(lockstep_ranks, gathering_prompts):
    """Replicas in lockstep that get their prompts apart: all, unless prompts are gathered for several of them."""
    return lockstep_ranks / xp.minimum(xp.maximum(gathering_prompts, 1.0), lockstep_ranks)


@formula(unit="1", source="little1961")
def prompting_shares(
    alone_rounds, round_prompts, held_prompts, lockstep_ranks, apart_ranks, batch_groups, mixed_iterations
):
    """Parts of the iterations that hold prompts of one group of a replica, and of any in lockstep, by whose.

    A prompt follows every answer that ends.
    """
    stops = 1 - mixed_iterations
    apart, places = apart_ranks * batch_groups, lockstep_ranks * batch_groups
    alone = -xp.expm1(xp.log1p(-xp.minimum(alone_rounds, MOST_ROUNDS)) / apart)
    begin = -xp.expm1(apart * xp.log1p(-part_of_iterations(alone, stops)))
    come = round_prompts / alone_rounds
    hit = hit_places(come, places)
    own, some = iterations_with_prompts(
        begin, come, hit, round_prompts, held_prompts, places, apart_ranks, stops, batch_groups
    )
    return table("whose", own=own, some=some)


@formula(unit="1", source="little1961")
def even_prompting_rounds(prompting_shares, mixed_iterations, decode_steps):
    """Iterations with prompts for each step where a prompt follows every answer that ends; without steps all."""
    rounds = at(prompting_shares, whose="some") / (1 - (1 - mixed_iterations) * at(prompting_shares, whose="own"))
    return xp.where(decode_steps > 0, rounds, 1.0)


@alternative(of="prompting_rounds", by="batch_rule", label="rate", unit="1", source="kleinrock1975queueing",
             others={ONE_BATCH: "even_prompting_rounds"})  # fmt: skip
def rate_prompting_rounds(
    alone_rounds,
    round_prompts,
    held_prompts,
    prompting_shares,
    even_prompting_rounds,
    batch_groups,
    decode_step_time,
    added_time,
    prefill_sequences,
    mean_prefill_ratio,
    lockstep_ranks,
    apart_ranks,
    prompt_ratio,
    length_weight,
    prompt_room,
    mixed_iterations,
    going_on,
    further_share,
    decode_steps,
):
    """Iterations with prompts for each step under random arrivals: more prompts come in a longer iteration.

    Of r prompts per second some come in a time t with the chance 1 - exp(-r·t). An iteration takes T without prompts,
    T + x with some (g·T + x where a part g of its steps goes on), so that new ones come to a part q of the iterations:
    q = p/(p + exp(-r·(T + x))), with p = 1 - exp(-r·T). x grows with their number. r is that of which r·(T + q·x) come
    in a step, a fixed point. Where all places are taken, a prompt follows every answer that ends.
    """
    added, stops = added_time * mean_prefill_ratio, 1 - mixed_iterations
    beside = decode_step_time * (1 - stops * (1 - going_on))
    share = even_prompting_rounds
    rate = round_prompts / (decode_step_time + share * added)
    for _ in range(RATE_STEPS):
        some = gathered(round_prompts / share, lockstep_ranks, prompt_ratio, length_weight, prompt_room)
        more = xp.maximum(some / prefill_sequences, 1.0)
        longer = added * (1 + further_share * (more - 1))
        short, long = -xp.expm1(-rate * decode_step_time), xp.exp(-rate * (beside + longer))
        begin = xp.minimum(short / (short + long), alone_rounds)
        come = round_prompts * (1 - stops * at(prompting_shares, whose="own")) / begin
        hit, places = hit_places(come, lockstep_ranks), lockstep_ranks * batch_groups  # the group that begins next
        own, share = iterations_with_prompts(begin, come, hit, round_prompts, held_prompts, places, apart_ranks, stops)
        share = share / (1 - stops * own)
        rate = rate * xp.sqrt(round_prompts / (rate * (decode_step_time + share * longer)))
    full = only("load", NODES[-1])
    return xp.where(decode_steps > 0, share * (1 - full) + even_prompting_rounds * full, 1.0)


@formula(unit="1", source="agrawal2024sarathi")
def prompt_room(prompt_budget, computed_prompt_tokens, chunked_prompts):
    """Prompts of the mean length for which an iteration has room: whole ones where the engine does not cut them."""
    room = prompt_budget / computed_prompt_tokens
    return xp.maximum(xp.where(chunked_prompts, room, xp.floor(room * (1 + 1e-6))), 1.0)


@alternative(of="crowding", by="batch_rule", label="rate", unit="1", source="kleinrock1975queueing",
             others={ONE_BATCH: 1.0})  # fmt: skip
def rate_crowding(
    prompting_rounds,
    round_prompts,
    prefill_sequences,
    lockstep_ranks,
    prompt_ratio,
    length_weight,
    prompt_room,
    prompts_of_a_round,
    batch_groups,
    prompts_beside_steps,
    decode_steps,
):
    """Prompts of the busiest replica over those of an iteration: more come in a longer one.

    Where all places are taken they fall to all groups of a pipeline, which wait for the one with most beside its steps.
    """
    come = gathered(round_prompts / prompting_rounds, lockstep_ranks, prompt_ratio, length_weight, prompt_room)
    most = gathered(prompts_of_a_round, lockstep_ranks * batch_groups, prompt_ratio, length_weight, prompt_room)
    full = only("load", NODES[-1]) * xp.where(batch_groups > 1, prompts_beside_steps, 0.0)
    last = only("load", NODES[-1]) - full
    crowded = xp.maximum((come * (1 - full) + most * full) / prefill_sequences, 1.0) * (1 - last) + last
    return xp.where(decode_steps > 0, crowded, 1.0)


@formula(unit="1", source="little1961")
def prompts_of_a_round(
    round_prompts,
    prompts_in_lockstep,
    gathering_prompts,
    gathering_steps,
    polling_steps,
    place_steps,
    in_step,
    full_prompts,
):
    """Prompts of a round that holds some: as stated, those of random arrivals, or as many as there is room for."""
    come = came_together(polling_steps, gathering_prompts, gathering_steps, round_prompts, place_steps)
    come = come + in_step * xp.maximum(full_prompts - come, 0.0)
    return xp.where(prompts_in_lockstep > 0, xp.maximum(prompts_in_lockstep, come), come)


@formula(unit="1", source="agrawal2024sarathi")
def going_on(mixed_iterations, prompting_shares, other_sequences_share, decode_steps):
    """Part of the steps that go on in an iteration with prompts: those beside them, and of other ranks in lockstep."""
    own, some = (at(prompting_shares, whose=name) for name in ("own", "some"))
    others = xp.maximum(1 - own / some, 0.0) * other_sequences_share
    others = xp.where(decode_steps > 0, others, 0.0)
    return mixed_iterations + (1 - mixed_iterations) * others


@formula(unit="s", source="agrawal2024sarathi")
def added_time(pass_time, going_on):
    """Time that prompts add to an iteration: T(b, c) - T(b, 0), or that of their own pass."""
    passes = in_pass(pass_time, "prefill"), in_pass(pass_time, "decode")
    return xp.maximum(passes[0] - going_on * passes[1], LEAST_ADDED * passes[0])


@formula(unit="1", source="agrawal2024sarathi")
def further_share(further_prompts_ratio, pass_time, added_time):
    """What as many prompts again add to an iteration, over what those that come in one add."""
    lone = at(in_pass(pass_time, "prefill"), load=NODES[0])
    return xp.minimum(at(further_prompts_ratio, further="twice") * lone / added_time, 1.0)


@formula(unit="s", source="agrawal2024sarathi")
def crowded_added_time(added_time, further_share, crowding):
    """Time that prompts add to an iteration, as many more of them as come in a longer one."""
    return added_time * (1 + further_share * (crowding - 1))


@formula(unit="s", source="agrawal2024sarathi")
def own_prefill_time(added_time, prefill_passes, prefill_sequences, stage_share, mean_prefill_ratio):
    """Time that the prefill of one request adds to the iterations of its replica: of the fullest stage."""
    return added_time * prefill_passes / prefill_sequences * stage_share * mean_prefill_ratio


@alternative(of="request_prefill_time", by="batch_rule", label="given", unit="s", source="pope2022inference",
             others={REPLACED: "shared_prefill_time"})  # fmt: skip
def given_request_prefill_time(prefill_time, replica_batch):
    """Time of a replica that the prefill of one request takes: its share of that of the batch."""
    return prefill_time / replica_batch


@formula(unit="s", source="yu2022orca")
def shared_prefill_time(
    crowded_added_time, prompting_rounds, round_prompts, lockstep_ranks, mean_prefill_ratio, prefill_sequences
):
    """Time of a replica that the prefill of one request takes: its share of the rounds with prompts."""
    added = crowded_added_time * (1 + (mean_prefill_ratio - 1) / prefill_sequences)
    return added * lockstep_ranks * prompting_rounds / round_prompts


@formula(unit="s", source="yu2022orca, agrawal2024sarathi")
def request_decode_time(
    decode_step_time,
    decode_steps,
    replica_batch,
    mixed_iterations,
    pass_time,
    prefill_rounds,
    started_passes,
    stage_share,
    rounds_ahead,
):
    """Time of a replica that one request takes beyond what its prompt adds: its share of the steps of its batch.

    And of the iterations that compute its own prompt beside them.
    """
    rounds = prefill_rounds + started_passes * stage_share + rounds_ahead
    own = mixed_iterations * in_pass(pass_time, "decode") * rounds
    return (decode_step_time * decode_steps + own) / replica_batch
