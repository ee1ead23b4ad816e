"""Random arrivals: how long an answer takes after its first token, by its length.

The batch that runs changes while an answer does, the less the longer it is. Prompts hold up its steps: those that come
meanwhile, and where prompts come first those behind its own, computed in a row before its first step. Not more of them
can than there are places. Where all places are taken (``crowd``), the batch is the largest, and a prompt follows every
answer that ends.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import at

from .arrivals import ARRIVALS
from .batching import NODES, ONE_BATCH
from .distributions import answer, mixed, packed, unpacked
from .met_iterations import moments
from .tabulated import at_batch

# ---- steps ----------------------------------------------------------------------------------------------------------


@formula(unit="s", source="little1961")
def answering_step_time(
    decode_step_time,
    decode_step_time_slope,
    node_batch,
    replica_sequences,
    batch_gain,
    arrival_dispersion,
    places,
    lockstep_ranks,
):
    """Mean time of the steps of a request: a batch that varies is larger where most sequences see it, by I/(2a).

    With hardly any sequences it is the only one.
    """
    more = arrival_dispersion / (2 * batch_gain) - 1
    seen = xp.minimum(replica_sequences + 1 / lockstep_ranks + more * (1 - xp.exp(-replica_sequences)), places)
    return at_batch(seen, decode_step_time, decode_step_time_slope, node_batch)


@formula(unit="1", source="kleinrock1975queueing")
def answering_step_variation(replica_sequences, batch_gain, arrival_dispersion):
    """Variance of the time of a step over its square, as the batch changes: a batch b has the variance b·I/a."""
    return (1 - batch_gain) ** 2 * arrival_dispersion / batch_gain / xp.maximum(replica_sequences, 1.0)


def left_by_mean(times):
    """Part of a variance that is left in the mean over so many relaxation times: 2·(x - 1 + exp(-x))/x²."""
    x = xp.maximum(times, 1e-2)
    return 2 * (x - 1 + xp.exp(-x)) / x**2


# ---- prompts in between ---------------------------------------------------------------------------------------------


@formula(unit="s", source="kleinrock1975queueing")
def free_sojourn(rate_prefill_sojourn, rate_arrival_share):
    """Time from arrival to the end of the prefill of requests that find a place, by statistic."""
    free = ARRIVALS[:-1]
    shares = [at(rate_arrival_share, arrival=kind) for kind in free]
    whole = sum(shares)
    parts = [(s / whole, *unpacked(at(rate_prefill_sojourn, arrival=k))) for k, s in zip(free, shares, strict=True)]
    return packed(*mixed(parts))


@formula(unit="s", source="kwon2023vllm, agrawal2024sarathi")
def longest_row(
    met_round_hold_time,
    prefill_moment,
    replica_sequences,
    places,
    decode_steps,
    met_crowded_added_time,
    prompts_beside_steps,
):
    """Time of as many prompts in a row as there are other places free, (c - 1)·(1 - b/c), of the lengths of a row.

    Where prompts are computed beside steps, no more of them hold up an answer than its steps have beside them.
    """
    second, _, _ = moments(prefill_moment)
    free = (places - 1) * (1 - xp.minimum(replica_sequences / places, 0.99)) + 1e-2
    row, beside = free * second * met_round_hold_time, xp.maximum(decode_steps, 1.0) * met_crowded_added_time
    return xp.where(prompts_beside_steps > 0, xp.minimum(row, beside), row)


@formula(unit="s", source="kwon2023vllm")
def admission_time(request_prefill_time, places):
    """Time of the prompts of all other places of a replica."""
    return (places - 1) * at(request_prefill_time, load=NODES[-1])


def longest_over_mean(longest, mean, square):
    """The longest over the mean of what mostly is 0, else exponential: of its mean and its mean square."""
    filled = square / longest / xp.where(mean > 0, mean, 1e10)
    return 2 / xp.maximum(filled, 0.025)


def cut(longest, mean, square, cube):
    """The first three moments about zero of such a time that is never longer.

    Of an exponential time of mean t the moments up to t·y are 1 - exp(-y), 1 - exp(-y)·(1 + y), and so on.
    """
    y = longest_over_mean(longest, mean, square)
    rest = xp.exp(-y)
    parts = (1 - rest, 1 - rest * (1 + y), 1 - rest * (1 + y + y**2 / 2))
    return [part * moment for part, moment in zip(parts, (mean, square, cube), strict=True)]


@formula(unit="1", source="kleinrock1975queueing")
def held_steps_share(busy_share, step_under_way, pp, met_crowded_added_time):
    """Part q of the steps of an answer that prompts hold up."""
    return xp.minimum(busy_share / (1 - busy_share) * step_under_way * pp / met_crowded_added_time, 0.99)


@formula(unit="1", source="kleinrock1975queueing")
def held_steps_persistence(held_steps_share, step_under_way, pp, offered_rate, dp, lockstep_ranks):
    """How much more likely a step is held up behind one that is than behind one that is not, d = 1 - s/q.

    Of a chain of two states: behind a step alone prompts have come with the chance s = 1 - exp(-r·T).
    """
    come = -xp.expm1(-offered_rate / dp * lockstep_ranks * step_under_way * pp)
    return xp.minimum(xp.maximum(1 - come / held_steps_share, 0.0), 0.98)


@formula(unit="1", source="kleinrock1975queueing")
def row_growth(
    busy_share,
    prompt_load,
    held_steps_share,
    held_steps_persistence,
    turn_share,
    met_crowded_added_time,
    met_round_hold_time,
    prompts_beside_steps,
    added_variation,
):
    """Time of prompts in a row that hold up steps over that of those that come first, as an answer meets them.

    It is 1/(1 - u)² of prompts that are computed in turn, as more come meanwhile. Of iterations that others share, a
    chain of two states, (1 - q)·(1 + d)/(1 - d) of one of them, and what their times vary.
    """
    turn = 1 / (1 - xp.minimum(busy_share, prompt_load)) ** 2
    more = held_steps_persistence
    chain = (1 - held_steps_share) * (1 + more) / (1 - more) + added_variation * turn
    chain = chain * met_crowded_added_time / met_round_hold_time
    turn = xp.where(prompts_beside_steps > 0, xp.minimum(turn, chain), turn)
    return turn_share * turn + (1 - turn_share) * chain


@formula(unit="s", source="kleinrock1975queueing")
def rows_behind(
    prompt_load,
    met_round_hold_time,
    rate_first_time,
    mean_prefill_ratio,
    offered_rate,
    dp,
    lockstep_ranks,
    prefill_moment,
    free_sojourn,
    free_wait,
    prompt_part,
    longest_row,
    prompts_beside_steps,
    met_crowded_added_time,
    held_steps_share,
    held_steps_persistence,
):
    """Time of the prompts in a row behind its own by which the steps of a request come later, by statistic.

    Where prompts are computed beside steps, its first one is held up with the chance h that others have come while its
    own prompt was computed. A chain of two states that begins like that has (h - q)/(1 - d) more of one than else.
    """
    second, third, _ = moments(prefill_moment)
    later = 1 / (1 - prompt_load)
    row = met_round_hold_time * second * later**2  # second moment over the first, and third
    rows = met_round_hold_time**2 * (third * later**3 + 3 * prompt_load * second**2 * later**4)
    mean, variance, cube = unpacked(free_sojourn)
    own = prompt_load * later
    behind, square, cube = cut(
        longest_row,
        own * mean,
        own * mean * row + own**2 * (variance + mean**2),
        own * mean * rows + 3 * own**2 * row * (variance + mean**2) + own**3 * (cube + 3 * variance * mean + mean**3),
    )
    more = held_steps_persistence
    own_time = rate_first_time * mean_prefill_ratio
    waiting = at(free_wait, statistic="mean") * xp.minimum(prompt_part, 1.0)
    come = -xp.expm1(-offered_rate / dp * (lockstep_ranks * own_time + waiting))
    beside = xp.maximum(come - held_steps_share, 0.0) / (1 - more) * met_crowded_added_time
    mixed_iterations = prompts_beside_steps > 0
    return packed(
        xp.where(mixed_iterations, beside, behind),
        xp.where(mixed_iterations, beside**2, square - behind**2),
        xp.where(mixed_iterations, 2 * beside**3, cube - 3 * behind * square + 2 * behind**3),
    )


@formula(unit="s", source="kleinrock1975queueing")
def free_answer(answering_step_time, decode_steps, busy_share, rows_behind, crowd_answer):
    """Mean time of an answer after its first token if it found a place, at most that on a full replica."""
    number = xp.maximum(decode_steps, 1.0)
    holds = busy_share / (1 - busy_share)
    behind = at(rows_behind, statistic="mean")
    return xp.minimum(answering_step_time * (number + holds * (number - 1)) + behind, crowd_answer)


@formula(unit="s", source="kwon2023vllm")
def crowd_answer(full_batch_step_time, decode_steps, admission_time):
    """Mean time of an answer after its first token on a full replica: all others end meanwhile."""
    return full_batch_step_time * xp.maximum(decode_steps, 1.0) + admission_time


@alternative(of="free_answer_time", by="batch_rule", label="rate", unit="s", source="kleinrock1975queueing",
             others={ONE_BATCH: "loop_free_answer_time"})  # fmt: skip
def rate_free_answer_time(
    answering_step_time,
    answering_step_variation,
    batch_gain,
    decode_steps,
    busy_share,
    row_growth,
    met_round_hold_time,
    prefill_moment,
    rows_behind,
    longest_row,
    crowd_answer,
    admission_time,
):
    """Time of an answer after its first token if it found a place, by piece.

    Prompts hold up u/(1 - u) of the time of its steps and of its way through the prefill, as a compound Poisson
    process of rows of prompts; no more than two standard deviations above its mean it is as long as on a full replica.
    """
    u, prompt, (second, third, _) = busy_share, met_round_hold_time, moments(prefill_moment)
    holds = u / (1 - u)
    behind, waiting, skewed = unpacked(rows_behind)
    root = xp.sqrt(row_growth)
    _, two, three = cut(
        longest_row,
        1.0,
        prompt * second * row_growth,
        prompt**2 * (third * root**3 + 3 * xp.maximum(1 - 1 / root, 0.0) * second**2 * row_growth**2),
    )

    number = xp.maximum(decode_steps, 1.0)
    steps, met = answering_step_time * number, holds * answering_step_time * (number - 1)
    varying = (steps / (1 - u)) ** 2 * answering_step_variation * left_by_mean(batch_gain)
    shorter = 1 / xp.maximum((steps + met + behind) / crowd_answer, 1.0)
    room = (
        admission_time * prompt * xp.maximum(second - 1, 0.0)
        + ((crowd_answer - (steps + met + behind) * shorter) / 2) ** 2
    )
    spread = xp.maximum(varying + met * two + waiting, room)
    less = xp.where(spread > 0, room / xp.maximum(spread, 1e-12 * crowd_answer**2), 1.0)
    root = xp.sqrt(less)
    return answer(
        (steps + met) * shorter,
        behind * shorter,
        varying * less,
        met * two * less,
        waiting * less,
        met * three * less * root,
        skewed * less * root,
    )


@formula(unit="s", source="kwon2023vllm")
def full_batch_step_time(decode_step_time):
    """Time of a step with every place taken."""
    return at(decode_step_time, load=NODES[-1])


@alternative(of="crowd_answer_time", by="batch_rule", label="rate", unit="s", source="little1961",
             others={ONE_BATCH: "loop_crowd_answer_time"})  # fmt: skip
def rate_crowd_answer_time(crowd_answer, admission_time, request_prefill_time, prefill_moment, output_variation):
    """Time of an answer after its first token on a full replica, by piece."""
    second, _, _ = moments(prefill_moment)
    spread = admission_time * at(request_prefill_time, load=NODES[-1]) * (second - 1 + output_variation**2)
    return answer(crowd_answer, 0.0, spread_each=spread)
