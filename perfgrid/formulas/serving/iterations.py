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
from .batching import NODES, ONE_BATCH, REPLACED
from .latency import in_pass
from .lockstep import most_prompts
from .tabulated import at_met_batch

RATE_STEPS = 5  # of the search for a rate
FEWEST = 1e-6  # prompts of an iteration: of so few no two meet
UNBOUND = 1e9  # sequences of an engine whose prompts wait for no room
LEAST_ADDED = 1e-3  # part of an iteration that prompts add at least

# ---- what an iteration holds ----------------------------------------------------------------------------------------


@alternative(of="mixed_iterations", by="batch_rule", label="given", unit="1", source="pope2022inference")
def given_mixed_iterations():
    """Part of the steps that run beside prompts in an iteration that holds some: none, as a batch starts together."""
    return 0.0


@alternative(
    of="mixed_iterations",
    by="batch_rule",
    label=("concurrency", "memory", "run", "rate"),
    unit="1",
    source="agrawal2024sarathi",
)
def LABEL_mixed_iterations(prompts_beside_steps, other_sequences_share):
    """Part of the steps that run beside prompts in an iteration that holds some."""
    return prompts_beside_steps * other_sequences_share


@alternative(of="mixed_iterations", by="batch_rule", label="clients", unit="1", source="agrawal2024sarathi")
def clients_mixed_iterations(prompts_beside_steps, other_sequences_share):
    """Part of the steps that run beside prompts, by load: all in the loop, half while its beginning is computed."""
    part = table("load", **{node: 1.0 if node == NODES[0] else 0.5 for node in NODES})
    return prompts_beside_steps * other_sequences_share * part


@formula(unit="1", source="reiser1980mva")
def other_sequences_share(replica_batch, lockstep_ranks):
    """Part of the running sequences that a prompt has beside itself."""
    return xp.maximum(1 - 1 / (replica_batch * lockstep_ranks), 0.0)


@formula(unit="1", source="agrawal2024sarathi, zheng2024sglang")
def prompts_beside_steps(prefill_first, pools_are_separate, decode_steps):
    """1 where an iteration computes prompts beside steps: where there are any, on the same devices."""
    beside = xp.where(prefill_first, 0.0, 1.0) * xp.where(decode_steps > 0, 1.0, 0.0)
    return beside * (1 - pools_are_separate)


@formula(unit="1", source="agrawal2024sarathi")
def prompt_bound_batch(decode_steps, prefill_chunk_tokens, cp, computed_prompt_tokens, pp, dp, prompts_beside_steps):
    """Sequences of n steps whose prompts of c tokens mixed iterations have room for: n·room/c in each group."""
    most = decode_steps * prefill_chunk_tokens * cp / computed_prompt_tokens * pp
    return dp * xp.where(prompts_beside_steps > 0, xp.maximum(most, 1.0), UNBOUND)


# ---- prompts that come to it ----------------------------------------------------------------------------------------


@formula(unit="1", source="little1961")
def iteration_arrivals(replica_batch, batch_groups, lockstep_ranks, decode_steps, pools_are_separate, arrival_rate):
    """Prompts that come while a group takes a step, to all replicas in lockstep: of b answers of n steps b/n end.

    None meet others that arrive where steps are taken elsewhere, or not at all.
    """
    ended = replica_batch / batch_groups * lockstep_ranks / xp.maximum(decode_steps, 1.0)
    alone = (arrival_rate > 0) & (decode_steps == 0)
    return xp.maximum(xp.where(alone, 0.0, ended) * (1 - pools_are_separate), FEWEST)


@formula(unit="1", source="little1961")
def prompts_of_an_iteration(
    iteration_arrivals, prompts_in_lockstep, gathering_prompts, gathering_steps, polling_steps, decode_steps
):
    """Prompts that replicas in lockstep compute together where there is one: as stated, or of random arrivals."""
    come = came_together(polling_steps, gathering_prompts, gathering_steps, iteration_arrivals, decode_steps)
    return xp.where(prompts_in_lockstep > 0, xp.maximum(prompts_in_lockstep, 1.0), come)


@formula(unit="1", source="little1961")
def round_prompts(iteration_arrivals, batch_groups):
    """Prompts that come while every group of a pipeline takes a step, to all replicas in lockstep."""
    return iteration_arrivals * batch_groups


@formula(unit="1", source="little1961")
def alone_rounds(round_prompts, prompts_of_a_round):
    """Part of the rounds in which prompts begin, if every round lasts as long."""
    return round_prompts / prompts_of_a_round


@alternative(of="beginning_rounds", by="batch_rule", label=ONE_BATCH, unit="1", source="little1961")
def LABEL_beginning_rounds(alone_rounds):
    """Part of the rounds in which prompts begin: those of answers that end, whatever a round takes."""
    return alone_rounds


def gathered(prompts, ranks, variation, room, groups):
    """Prompts of the busiest of so many ranks that a round computes after one another, in mean lengths.

    The first group of a pipeline that begins takes all that have come and it has room for; others follow beside it.
    """
    most = most_prompts(prompts, ranks, variation)
    return xp.minimum(most, xp.maximum(room, most / groups))


@alternative(of="beginning_rounds", by="batch_rule", label="rate", unit="1", source="kleinrock1975queueing")
def rate_beginning_rounds(
    alone_rounds,
    round_prompts,
    prefill_passes,
    decode_step_time,
    added_time,
    prefill_sequences,
    mean_prefill_ratio,
    lockstep_ranks,
    batch_groups,
    prompt_variation,
    prompt_room,
):
    """Part of the rounds in which prompts begin: those of arrivals, of which more come in a longer round.

    A round of time t is followed by one with prompts with the chance 1 - exp(-t·r), where r prompts come per second:
    q = p/(p + exp(-r·(T + x))), with p = 1 - exp(-r·T) for a round T that prompts lengthen by x, the more of them the
    longer. The rate is that of which r·(T + q·x) come in a round, found by steps that take its logarithm for twice that
    of r. Where all places are taken, prompts follow answers that end.
    """
    added = prefill_passes * added_time * mean_prefill_ratio / prefill_sequences
    share, rate = alone_rounds, round_prompts / (decode_step_time + alone_rounds * added)
    for _ in range(RATE_STEPS):
        longer = added * gathered(round_prompts / share, lockstep_ranks, prompt_variation, prompt_room, batch_groups)
        short, long = -xp.expm1(-rate * decode_step_time), xp.exp(-rate * (decode_step_time + longer))
        share = xp.minimum(short / (short + long), alone_rounds)
        rate = rate * xp.sqrt(round_prompts / (rate * (decode_step_time + share * longer)))
    full = only("load", NODES[-1])
    return share * (1 - full) + alone_rounds * full


@formula(unit="1", source="agrawal2024sarathi")
def prompt_room(prefill_chunk_tokens, cp, computed_prompt_tokens, chunked_prompts):
    """Prompts of the mean length for which an iteration has room: whole ones where the engine does not cut them."""
    room = prefill_chunk_tokens * cp / computed_prompt_tokens
    return xp.maximum(xp.where(chunked_prompts, room, xp.floor(room * (1 + 1e-6))), 1.0)


@alternative(of="crowding", by="batch_rule", label=ONE_BATCH, unit="1", source="little1961")
def LABEL_crowding():
    """Prompts of the busiest replica over those of an iteration: as many come in each."""
    return 1.0


@alternative(of="crowding", by="batch_rule", label="rate", unit="1", source="kleinrock1975queueing")
def rate_crowding(
    beginning_rounds, round_prompts, prefill_sequences, lockstep_ranks, batch_groups, prompt_variation, prompt_room
):
    """Prompts of the busiest replica over those of an iteration: more come in a longer one."""
    come = gathered(round_prompts / beginning_rounds, lockstep_ranks, prompt_variation, prompt_room, batch_groups)
    full = only("load", NODES[-1])
    return xp.maximum(come / prefill_sequences, 1.0) * (1 - full) + full


@formula(unit="1", source="little1961")
def prompts_of_a_round(
    round_prompts, prompts_in_lockstep, gathering_prompts, gathering_steps, polling_steps, decode_steps
):
    """Prompts of a round that holds some: as stated, or those of random arrivals."""
    come = came_together(polling_steps, gathering_prompts, gathering_steps, round_prompts, decode_steps)
    return xp.where(prompts_in_lockstep > 0, xp.maximum(prompts_in_lockstep, come), come)


@formula(unit="1", source="agrawal2024sarathi")
def going_on(
    mixed_iterations, prompts_of_an_iteration, lockstep_ranks, other_sequences_share, decode_steps, pools_are_separate
):
    """Part of the steps that go on in an iteration with prompts: those beside them, and of other ranks in lockstep."""
    others = xp.maximum(1 - prompts_of_an_iteration / lockstep_ranks, 0.0) * other_sequences_share
    others = xp.where(decode_steps > 0, others, 0.0) * (1 - pools_are_separate)
    return mixed_iterations + (1 - mixed_iterations) * others


@formula(unit="s", source="agrawal2024sarathi")
def added_time(pass_time, going_on):
    """Time that prompts add to an iteration: T(b, c) - T(b, 0), or that of their own pass."""
    passes = in_pass(pass_time, "prefill"), in_pass(pass_time, "decode")
    return xp.maximum(passes[0] - going_on * passes[1], LEAST_ADDED * passes[0])


@formula(unit="s", source="agrawal2024sarathi")
def own_prefill_time(added_time, prefill_passes, prefill_sequences, stage_share, mean_prefill_ratio):
    """Time that the prefill of one request adds to the iterations of its replica: of the fullest stage."""
    return added_time * prefill_passes / prefill_sequences * stage_share * mean_prefill_ratio


@alternative(of="request_prefill_time", by="batch_rule", label="given", unit="s", source="pope2022inference")
def given_request_prefill_time(prefill_time, replica_batch):
    """Time of a replica that the prefill of one request takes: its share of that of the batch."""
    return prefill_time / replica_batch


@formula(unit="s", source="narayanan2021")
def round_added_time(added_time, prompts_beside_steps, batch_groups, pass_time):
    """Time that prompts of one group add to a round of all groups of a pipeline.

    Stages are first in, first out: all others are held up as long. Where prompts have passes of their own, the steps of
    the others go on behind such a pass.
    """
    behind = (1 - prompts_beside_steps) * (1 - 1 / batch_groups) * in_pass(pass_time, "decode")
    return xp.maximum(added_time - behind, added_time / batch_groups)


@alternative(of="request_prefill_time", by="batch_rule", label=REPLACED, unit="s", source="yu2022orca")
def LABEL_request_prefill_time(
    round_added_time, prefill_passes, beginning_rounds, crowding, round_prompts, lockstep_ranks, mean_prefill_ratio
):
    """Time of a replica that the prefill of one request takes: its share of the rounds with prompts."""
    added = round_added_time * crowding * prefill_passes * mean_prefill_ratio
    return added * lockstep_ranks * beginning_rounds / round_prompts


@formula(unit="s", source="yu2022orca, agrawal2024sarathi")
def request_decode_time(decode_step_time, decode_steps, replica_batch, mixed_iterations, pass_time, prefill_rounds):
    """Time of a replica that one request takes beyond what its prompt adds: its share of the steps of its batch.

    And of the iterations that compute its own prompt beside them.
    """
    own = mixed_iterations * in_pass(pass_time, "decode") * prefill_rounds
    return (decode_step_time * decode_steps + own) / replica_batch


# ---- what a request meets -------------------------------------------------------------------------------------------


@formula(unit="s", source="little1961")
def iteration_time(decode_step_time, request_prefill_time, replica_batch, decode_steps):
    """Mean time from step to step of a running sequence, prompts included: of b sequences of n steps b/n begin."""
    step = xp.where(decode_steps > 0, decode_step_time, 0.0)
    return step + request_prefill_time * replica_batch / xp.maximum(decode_steps, 1.0)


@formula(unit="s", source="yu2022orca")
def met_prefill_time(request_prefill_time, met_batch, node_batch):
    """Time of a replica that the prefill of one request takes in the batch that arrivals meet."""
    return at_met_batch(met_batch, request_prefill_time, node_batch)


@formula(unit="s", source="yu2022orca")
def met_first_time(prefill_time, added_time, filling, met_batch, node_batch):
    """Time of the iterations that compute a prompt, beside the batch that arrivals meet and other prompts."""
    return at_met_batch(met_batch, prefill_time + (filling - 1) * added_time, node_batch)


@formula(unit="1", source="kleinrock1975queueing")
def filling(crowding, prompt_room, prefill_sequences):
    """Prompts of the busiest replica over those of an iteration, as far as there is room in one."""
    return xp.minimum(crowding, xp.maximum(prompt_room / prefill_sequences, 1.0))


@alternative(of="first_time", by="batch_rule", label=ONE_BATCH, unit="s", source="pope2022inference")
def LABEL_first_time(prefill_time):
    """Time of the iterations that compute the prompts that a request waits for."""
    return at(prefill_time, load=NODES[0])


@alternative(of="first_time", by="batch_rule", label="rate", unit="s", source="yu2022orca")
def rate_first_time(met_first_time):
    """Time of the iterations that compute a prompt."""
    return met_first_time


@formula(unit="s", source="agrawal2024sarathi")
def met_added_time(added_time, filling, met_batch, node_batch):
    """Time that prompts add to an iteration of the batch that arrivals meet."""
    return at_met_batch(met_batch, added_time * filling, node_batch)


@formula(unit="s", source="kleinrock1975queueing")
def hold_time(added_time, crowding, prefill_passes, mean_prefill_ratio, met_batch, node_batch):
    """Time for which prompts of a round hold up the steps of the batch that arrivals meet."""
    return at_met_batch(met_batch, added_time * crowding * prefill_passes * mean_prefill_ratio, node_batch)


@formula(unit="s", source="agrawal2024sarathi")
def prompt_slot_time(
    own_prefill_time,
    step_under_way,
    prompts_beside_steps,
    computed_prompt_tokens,
    iteration_room,
    met_batch,
    node_batch,
):
    """Time from prompt to prompt of a replica whose iterations are filled with prompts: their part of a full one."""
    steps = prompts_beside_steps * step_under_way * computed_prompt_tokens / iteration_room
    return at_met_batch(met_batch, own_prefill_time, node_batch) + steps


@formula(unit="1", source="agrawal2024sarathi")
def iteration_room(prefill_chunk_tokens, cp, met_batch, step_tokens, pp):
    """Prompt tokens for which an iteration has room beside the steps of the batch that arrivals meet."""
    room = prefill_chunk_tokens * cp
    return xp.maximum(room - met_batch / pp * step_tokens, 0.05 * room)


@formula(unit="s", source="agrawal2024sarathi")
def prompting_iteration_time(met_added_time, step_under_way, prompts_beside_steps):
    """Time of an iteration with prompts that arrivals meet."""
    return met_added_time + prompts_beside_steps * step_under_way


@formula(unit="1", source="kleinrock1975queueing")
def prompting_time_share(rate_prefill_load, added_share, prompt_load, pools_are_separate):
    """Part of the time in which an iteration with prompts runs."""
    shared = xp.minimum(rate_prefill_load / xp.maximum(added_share, 1e-9), 0.99)
    return xp.where(pools_are_separate > 0, prompt_load, shared)


@formula(unit="1", source="agrawal2024sarathi")
def added_share(met_added_time, prompting_iteration_time):
    """Part of an iteration with prompts that these add."""
    return met_added_time / prompting_iteration_time


@formula(unit="s", source="vllm2026async")
def queued_iteration_time(step_under_way, busy_share, rounds_ahead):
    """Time of the iteration that is already put together while another one runs, where the host works ahead."""
    return rounds_ahead * step_under_way / (1 - busy_share)


@formula(unit="1", source="kleinrock1975queueing")
def iteration_moment(prefill_moment, added_share):
    """Moments of the time of an iteration with prompts about zero over powers of its mean, by moment.

    Only what prompts add varies with their lengths: E(a + b·Y)^k with a + b = 1 and Y of mean 1.
    """
    b, a = added_share, 1 - added_share
    second, third, fourth = (at(prefill_moment, moment=name) for name in ("second", "third", "fourth"))
    return table(
        "moment",
        second=a**2 + 2 * a * b + b**2 * second,
        third=a**3 + 3 * a**2 * b + 3 * a * b**2 * second + b**3 * third,
        fourth=a**4 + 4 * a**3 * b + 6 * a**2 * b**2 * second + 4 * a * b**3 * third + b**4 * fourth,
    )
