"""Closed loops: so many clients that each wait for an answer before they ask again.

``clients``, as benchmarks run them, all ask at once in the beginning; a replica has places for as many sequences as
fit, other requests wait for one. In an endless queue (``concurrency``, ``memory``) the next request is there when one
ends, so no step goes by; a ``run`` begins with all its requests. Of those with a place some wait for iterations with
room for their prompts. Tabulated by `load`: the loop first, then passes of as many prompts as fit, as in the
beginning, then its last round, in which fewer sequences run.

With c clients, P the time of a replica for one prompt, n steps of T: 1/(P + n·T/c) requests per second are served. In a
step (c - 1)/(n + 1) other answers end; a request waits for the prompts of those, and for the step that is under way or
for the prompts of the answers that ended a step earlier. By Little's law its own answer is held up by the prompts of
all other clients but these.

Answers of equal length end in the order in which they began: their prompts come in a wave of full iterations, round for
round. An engine that computes prompts before anything else holds up all answers alike, so every round is a beginning.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label, constants
from perfgrid.formulas.axes import at, only, rows, total

from .batching import ENDLESS, LOOPS, NODES, STARTED
from .distributions import at_deviation, deviation_and_skewness, scale_and_width
from .latency import WHOLE, in_pass
from .lockstep import most_above

ENDLESS_ROUNDS = 1e6
LOOP, MANY, LAST = NODES[:3]  # the loop, passes of many prompts, the last round

# ---- equations ------------------------------------------------------------------------------------------------------


def ends_of_passes(prompts, most, first, full):
    """Mean and last time at which passes end that compute ``prompts`` in turn, ``most`` in each but the last.

    A pass of one prompt takes ``first``, a full one ``full``, others lie on the line between them.
    """
    passes = xp.ceil(prompts / most - 1e-9)
    left = xp.minimum(xp.maximum(prompts - (passes - 1) * most, 1.0), most)
    shorter = xp.where(most > 1, (most - left) / xp.maximum(most - 1, 1e-9), 0.0) * (full - first)
    last = passes * full - shorter
    earlier = (prompts - left) * passes / 2 * full
    return (earlier + left * last) / prompts, last


# ---- who runs -------------------------------------------------------------------------------------------------------


FORMULAS = (
    *constants({"usual_step_time": (0.01, "s", "blis2026", "Step by which a wave is measured: a choice, not fitted.")}),
    *rows("loop_step_time", "decode_step_time", "s", "little1961", "Time of a step of a loop.", load=LOOP),
    *by_label(
        "batch_rule",
        {
            "loop_clients": ("1", "yu2022orca", "Clients of a closed loop."),
            "loop_places": ("1", "kwon2023vllm", "Clients of a closed loop that have places at once."),
            "asked_requests": ("1", "little1961", "Requests of a closed loop; 0 where it never ends."),
            "asking_time": ("s", "zhong2024distserve", "Time before a request is in the queue of the engine."),
            "steps_met": ("1", "little1961", "Steps that begin before a client asks again, which it waits for."),
            "in_step": ("1", "little1961", "How far answers that begin together end together, and so the next ones."),
            "room_queues": ("1", "kleinrock1975queueing", "1 where prompts queue for room beyond what they meet."),
        },
        {
            "concurrency": ("batch", "batch", 0.0, 0.0, 0.0, "loop_in_step", 1.0),
            "memory": ("placed_sequences", "placed_sequences", 0.0, 0.0, 0.0, "loop_in_step", 1.0),
            "run": ("placed_sequences", "placed_sequences", "requests", 0.0, 0.0, "loop_in_step", 0.0),
            "clients": ("batch", "placed_sequences", "loop_requests", "front_end_time", 1.0, "loop_in_step", 0.0),
            "given": ("batch", "batch", 0.0, 0.0, 0.0, 0.0, 0.0),
            "rate": ("most_sequences", "most_sequences", 0.0, "front_end_time", 1.0, 0.0, 0.0),
        },
    ),
)


@formula(unit="1", source="yu2022orca")
def active_clients(loop_clients, asked_requests):
    """Clients that have something to ask: not more than there are requests."""
    return xp.where(asked_requests > 0, xp.minimum(loop_clients, xp.maximum(asked_requests, 1.0)), loop_clients)


def served_beside(asking, most, waiting_factor):
    """Of N customers that come again and again, so many as are not in the queue of a server that B of them fill.

    One that comes meets the other n = N - 1 (Reiser and Lavenberg), of whom u·B are served and u²·w/(1 - u) wait
    (M/G/1, Pollaczek and Khinchine; w is half the second moment of a service, 0: no queue). n is their sum, a quadratic
    equation in u. The same part of N is served.
    """
    part = xp.maximum(asking - 1, 0.0) / most
    root = xp.root((1 - part) ** 2 + 4 * waiting_factor / most * part)
    return xp.minimum(xp.minimum(2 * asking / (1 + part + root), asking), most)  # kernels have steps


@formula(unit="1", source="kwon2023vllm")
def placed_sequences(largest_batch, dp):
    """Sequences for which there is memory and a place: one per replica at least."""
    return xp.maximum(largest_batch, dp)


@formula(unit="1", source="yu2022orca")
def placed_clients(active_clients, loop_places):
    """Clients of a closed loop that have places together."""
    return xp.minimum(active_clients, loop_places)


@formula(unit="1", source="kleinrock1975queueing, reiser1980mva")
def loop_batch(placed_clients, prompt_bound_batch, dp, prompt_ratio, length_weight, equal_lengths, room_queues):
    """Sequences of a closed loop that run together: of those with a place, all but those that wait for iterations.

    Prompts come at random, unless all answers are alike; each replica has a queue of its own.
    """
    second = total(prompt_ratio**2 * length_weight, "length")
    waiting_factor = xp.where(equal_lengths, 0.0, room_queues * second / 2)
    return dp * served_beside(placed_clients / dp, prompt_bound_batch / dp, waiting_factor)


@alternative(of="tabulated_batch", by="batch_rule", label=STARTED, unit="1", source="yu2022orca",
             others={"given": "batch", ENDLESS: "loop_batch"})  # fmt: skip
def LABEL_tabulated_batch(loop_batch, last_batch):
    """Sequences of a closed loop that run together, by load: in the end fewer."""
    return loop_batch + only("load", LAST) * (last_batch - loop_batch)


@formula(unit="1", source="agrawal2024sarathi")
def few_prompts(busiest_prompts, prompt_room, replica_batch):
    """Prompts of one pass of a closed loop: as many as answers end in a step, have room, and are there."""
    return xp.minimum(xp.minimum(busiest_prompts, prompt_room), xp.maximum(replica_batch, 1.0))


@alternative(of="prefill_sequences", by="batch_rule", label=STARTED, unit="1", source="agrawal2024sarathi")
def LABEL_prefill_sequences(few_prompts, replica_batch, prefill_chunk_tokens, computed_prompt_tokens, cp):
    """Prompts of one pass, by load: few in the loop, and in the beginning as many as a pass holds and are there."""
    held = xp.maximum(xp.floor(prefill_chunk_tokens * cp / computed_prompt_tokens), 1.0)
    many = xp.minimum(held, xp.floor(xp.maximum(replica_batch, 1.0)))
    return few_prompts + only("load", MANY) * (many - few_prompts)


@formula(unit="1", source="little1961")
def starting_share(active_clients, asked_requests):
    """Part of the requests that are there in the beginning; none where they never end."""
    return xp.where(asked_requests > 0, xp.minimum(active_clients / xp.maximum(asked_requests, 1.0), 1.0), 0.0)


@formula(unit="1", source="little1961")
def rounds_on_average(asked_requests, loop_batch):
    """Rounds before the mean request of a closed loop."""
    return xp.where(asked_requests > 0, xp.maximum(asked_requests / loop_batch - 1, 0.0) / 2, ENDLESS_ROUNDS)


@formula(unit="1", source="little1961")
def loop_in_step(
    equal_lengths, rounds_on_average, asking_time, usual_step_time, loop_batch, dp, full_prompts, lockstep_ranks
):
    """How far answers that begin together end together: 1 if all are alike and their clients ask again at once.

    They begin in a wave of so many iterations as their prompts fill. Front ends take any time up to twice the mean
    one, which widens the wave by the root of the rounds, in steps of 10 ms: their own time depends on the answer here.
    """
    wave = loop_batch / dp * lockstep_ranks / at(full_prompts, load=LOOP)
    wider = xp.root(rounds_on_average / 3) * asking_time / usual_step_time
    return xp.where(equal_lengths, wave / (wave + wider), 0.0)


@formula(unit="1", source="zheng2024sglang")
def rounds_begin_together(prompts_beside_steps, in_step):
    """1 where every round of a closed loop begins together: all answers are held up alike, and as long.

    Prompts beside steps hold up none: answers end one after the other, as they began.
    """
    return in_step * (1 - prompts_beside_steps)


def longest(count, mean, square, cube):
    """The longest of so many lengths of these moments about zero: at least 1."""
    variance = xp.maximum(square - mean**2, 0.0)  # of equal lengths nothing but rounding is left
    shape = scale_and_width(*deviation_and_skewness(mean, variance, cube - 3 * mean * square + 2 * mean**3))
    return xp.maximum(at_deviation(most_above(count), mean, *shape), 1.0)


@formula(unit="1", source="yu2022orca")
def rounds_in_step(output_variation, asked_requests, placed_clients):
    """How far the answers of the last round of a loop begin in step: those of k rounds before it vary by √k·v."""
    rounds = xp.maximum(asked_requests / placed_clients - 1, 0.0)
    return xp.maximum(1 - output_variation * xp.root(3 * rounds), 0.0)


@formula(unit="1", source="yu2022orca")
def left_over(placed_clients, asked_requests):
    """Requests of the last round of a loop, if its answers are in step: not more than run together."""
    whole = xp.maximum(xp.ceil(asked_requests / placed_clients * (1 - WHOLE)) - 1, 0.0)
    return xp.maximum(asked_requests - whole * placed_clients, 1.0)


@formula(unit="1", source="kleinrock1975queueing")
def unfinished_answers(rounds_in_step, loop_batch, answer_moment):
    """Answers whose rests are left when the last request of a loop begins, in mean lengths; none if all are in step."""
    return (1 - rounds_in_step) * loop_batch * at(answer_moment, power="second") / 2


@formula(unit="1", source="kleinrock1975queueing, hartley1954")
def last_answers(answer_moment, loop_batch, left_over, rounds_in_step):
    """Answers from the start of the last round of a loop until all have ended: the longest of those under way.

    In step they begin together. Else they have rests, which have the moments E(r^(k + 1))/(k + 1) of the lengths r;
    the fourth is taken to be that of a lognormal length.
    """
    second, third = (at(answer_moment, power=name) for name in ("second", "third"))
    whole = longest(left_over, 1.0, second, third)
    return rounds_in_step * whole + (1 - rounds_in_step) * longest(loop_batch, second / 2, third / 3, third**2 / 4)


@formula(unit="1", source="kleinrock1975queueing, hartley1954")
def first_answers(answer_moment, placed_clients):
    """Longest of the answers that begin a closed loop, in mean lengths."""
    second, third = (at(answer_moment, power=name) for name in ("second", "third"))
    return longest(placed_clients, 1.0, second, third)


@formula(unit="1", source="kleinrock1975queueing")
def last_batch(loop_batch, asked_requests, left_over, rounds_in_step, last_answers, unfinished_answers):
    """Sequences that run in the last round of a loop on average: all but the longest end earlier."""
    last = (rounds_in_step * left_over + unfinished_answers) / last_answers
    return xp.where(asked_requests > 0, xp.minimum(xp.maximum(last, 1.0), loop_batch), loop_batch)


@alternative(of="served_rate", by="batch_rule", label=LOOPS, unit="1/s", source="little1961")
def LABEL_served_rate(
    request_capacity,
    loop_batch,
    placed_clients,
    asking_time,
    loop_held_time,
    asked_requests,
    left_over,
    rounds_in_step,
    unfinished_answers,
    last_answers,
    first_answers,
    request_prefill_time,
    dp,
    decode_steps,
    decode_step_time,
):
    """Requests per second that end: those of the passes, less often where each client waits for the server between.

    A loop of M requests takes the prompts and the steps of all but its last round, and that: those left over begin
    together if answers are in step, otherwise rests of answers end, whose prompts have been computed.

    And not less than the longest of the answers that begin it.
    """
    between = asking_time + loop_held_time
    request = 1 / at(request_capacity, load=LOOP)
    prompt = at(request_prefill_time, load=LOOP) / dp
    left = rounds_in_step * left_over
    whole = xp.maximum(asked_requests - left - unfinished_answers, 0.0)  # answers whose steps are all taken before
    asked_again = asked_requests - left - (1 - rounds_in_step) * placed_clients
    before = (asked_requests - left) * prompt + whole * (request - prompt) + asked_again / loop_batch * between
    last = left / dp * at(request_prefill_time, load=LAST)
    last = between + last + decode_steps * last_answers * at(decode_step_time, load=LAST)
    first = placed_clients * prompt + decode_steps * first_answers * at(decode_step_time, load=LAST)
    ends = asked_requests > 0
    return xp.where(
        ends,
        asked_requests / xp.where(ends, xp.maximum(before + last, between + first), request),
        loop_batch / (loop_batch * request + between),
    )


# ---- what a request waits for ---------------------------------------------------------------------------------------


def together(prefill_time, pass_time, prefill_passes, stage_share, prefill_sequences, replica_batch):
    """Mean and last time to the first token of requests that come together.

    Passes of many prompts follow each other at the pace of the fullest stage; the last stage is later by what the
    pipeline is longer.
    """
    few, many = (at(prefill_sequences, load=node) for node in (LOOP, MANY))
    passes = in_pass(pass_time, "prefill") * prefill_passes * stage_share
    shared, full = (at(passes, load=node) for node in (LOOP, MANY))
    further = xp.where(many > few, (full - shared) / xp.maximum(many - few, 1e-9), 0.0)  # seconds of one more prompt
    prompts = xp.maximum(at(replica_batch, load=LOOP), 1.0)
    mean, last = ends_of_passes(prompts, many, full - further * (many - 1), full)
    traversal = at(prefill_time, load=MANY) - full
    return mean + traversal, last + traversal


@formula(unit="s", source="agrawal2024sarathi")
def starting_time(prefill_time, pass_time, prefill_passes, stage_share, prefill_sequences, replica_batch):
    """Mean time to the first token of requests that come together: passes of many prompts, one after the other."""
    return together(prefill_time, pass_time, prefill_passes, stage_share, prefill_sequences, replica_batch)[0]


@formula(unit="s", source="agrawal2024sarathi")
def starting_pause(prefill_time, pass_time, prefill_passes, stage_share, prefill_sequences, replica_batch):
    """Mean time from the first token of requests that come together until all of them have theirs."""
    mean, last = together(prefill_time, pass_time, prefill_passes, stage_share, prefill_sequences, replica_batch)
    return last - mean


@formula(unit="s", source="agrawal2024sarathi")
def starting_hold(starting_pause, prompts_beside_steps, loop_step_time, pass_time):
    """Time for which the beginning holds up a mean answer of it: where iterations are mixed, its steps go on."""
    going_on = loop_step_time / at(in_pass(pass_time, "prefill"), load=MANY)
    return starting_pause * (1 - prompts_beside_steps * xp.minimum(going_on, 1.0))


@formula(unit="1", source="little1961")
def ends_in_step(replica_batch, decode_steps, steps_met, in_step, full_prompts, lockstep_ranks):
    """Answers that end in a step of the loop, on average: each takes its steps, and those that a client meets.

    In step with each other, as many as there was room for when they began.
    """
    ends = xp.maximum(at(replica_batch, load=LOOP) - 1, 0.0) / xp.maximum(decode_steps + steps_met, 1.0)
    return ends + in_step * xp.maximum(at(full_prompts, load=LOOP) / lockstep_ranks - ends, 0.0)


@formula(unit="1", source="little1961")
def others_share(replica_batch, full_prompts, lockstep_ranks, in_step):
    """Part of the requests of the loop that ask while others run: in step with each other, all but the last to end."""
    batch = xp.maximum(at(replica_batch, load=LOOP), 1e-9)
    left = in_step * at(full_prompts, load=LOOP) / lockstep_ranks
    return xp.minimum(xp.maximum(1 - left / batch, 0.0), xp.minimum(xp.maximum(batch - 1, 0.0), 1.0))


@formula(unit="1", source="yu2022orca")
def group_wait_share(ends_in_step, prompts_beside_steps, steps_met):
    """Part of the later requests that wait for the prompts of those before them instead of a step, x.

    While a step runs, clients ask whose answers ended before it. Their prompts follow the step, and those of the
    answers that ended with it follow them at once: x = (1 - x)·(1 - exp(-e)), with e answers ending in a step. Mixed
    iterations hold prompts and steps: none.
    """
    some = 1 - xp.exp(-ends_in_step)
    return steps_met * (1 - prompts_beside_steps) * some / (1 + some)


@formula(unit="1", source="agrawal2024sarathi")
def own_group_share(
    prompt_room, prompts_beside_steps, replica_batch, steps_met, rounds_ahead, others_share, ends_in_step
):
    """Part of the prompts that come with a request that it waits for: half, and all that are in a pass with it.

    Of an endless queue prompts come at once, and half of those wait that a pass has no room for. Where iterations are
    mixed: those of the iterations before its own.
    """
    together = at(xp.minimum(prompt_room, xp.maximum(replica_batch, 1.0)), load=LOOP)
    beyond = xp.maximum(1 - (together - 1) / xp.maximum(ends_in_step, 1e-9), 0.0)
    alone = steps_met * (1 - 0.5 / together) + (1 - steps_met) * beyond / 2
    return xp.where(prompts_beside_steps > 0, (steps_met + rounds_ahead) * others_share, alone)


@formula(unit="1", source="little1961")
def prompts_before(ends_in_step, group_wait_share, own_group_share):
    """Prompts of others that a later request of the loop waits for, on average: of the group before it, and its own."""
    some = xp.maximum(1 - xp.exp(-ends_in_step), 1e-6)
    return ends_in_step * (group_wait_share / some + own_group_share)


@formula(unit="s", source="yu2022orca")
def awaited_step_time(loop_step_time, batch_groups, others_share, decode_steps, rounds_ahead, steps_met):
    """Time of the step that a later request of the loop waits for: of one group, if there are other clients.

    A host that works ahead has put the next one together as well.
    """
    steps = steps_met + rounds_ahead
    step = loop_step_time / at(batch_groups, load=LOOP)
    return xp.where(decode_steps > 0, others_share, 0.0) * steps * step


@formula(unit="s", source="little1961")
def met_wait(prompts_before, request_prefill_time, group_wait_share, awaited_step_time):
    """Mean wait of a later request of the loop for what it meets: prompts before it, or the step that is under way."""
    return prompts_before * at(request_prefill_time, load=LOOP) + (1 - group_wait_share) * awaited_step_time


@formula(unit="s", source="little1961")
def time_of_others(loop_batch, request_capacity, prefill_time, mean_prefill_ratio, decode_steps, loop_step_time):
    """Time of a request of the loop beside its own prompt and steps: of c that run each takes c/X (Little's law)."""
    own = at(prefill_time, load=LOOP) * mean_prefill_ratio + decode_steps * loop_step_time
    return xp.maximum(loop_batch / at(request_capacity, load=LOOP) - own, 0.0)


@formula(unit="s", source="little1961")
def pass_wait(met_wait, time_of_others, decode_steps):
    """Mean wait of a later request of the loop for others: not longer than they take, and that without later steps."""
    return xp.where(decode_steps > 0, xp.minimum(met_wait, time_of_others), time_of_others)


@formula(unit="s", source="little1961")
def held_prompt_time(time_of_others, pass_wait):
    """Time of prompts that hold up the mean answer of the loop: what others take beside its wait."""
    return time_of_others - pass_wait


@formula(unit="s", source="little1961")
def place_queue_time(active_clients, loop_batch, starting_share, request_capacity):
    """Mean wait of those that do not run: (c - b)/X with c clients, b of which run, and X requests per second.

    It is half of that and less for those that come in the beginning.
    """
    waiting = active_clients - loop_batch
    beginning = starting_share * waiting / (2 * active_clients)
    return (1 - starting_share + beginning) * waiting / at(request_capacity, load=LOOP)


@formula(unit="s", source="little1961, yu2022orca")
def loop_queueing_time(
    starting_time,
    prefill_time,
    pass_wait,
    loop_held_time,
    beginning_share,
    place_queue_time,
    asking_time,
):
    """Mean wait of a request beyond the passes of its prompt: for the server, the beginning or others, and a place."""
    others = xp.maximum(starting_time - at(prefill_time, load=LOOP), 0.0)
    later = pass_wait + loop_held_time
    return asking_time + beginning_share * others + (1 - beginning_share) * later + place_queue_time


@formula(unit="1", source="little1961")
def interference(
    held_prompt_time,
    later_prompts_share,
    beginning_share,
    starting_hold,
    decode_steps,
    loop_step_time,
):
    """Part of the time of a running sequence in which prompts of others hold up its steps.

    In the beginning, and where rounds begin together, those of its own round; later those of the others, but the ones
    that it waited for.
    """
    steps = xp.maximum(decode_steps, 1.0) * loop_step_time
    beginning = starting_hold + later_prompts_share * held_prompt_time
    waits = beginning_share * beginning + (1 - beginning_share) * held_prompt_time
    return xp.where(decode_steps > 0, waits / (steps + waits), 0.0)
