"""Ranks in lockstep: replicas that share experts start every pass together, and wait for the one with most to do.

A decoding step takes as long as that of the replica with most sequences. A router that sends each request to the
emptiest replica leaves them at most one sequence apart; one that does not look leaves them as balls in bins. Replicas
without a prompt go on with their steps beside those that have one.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import INNER, at, only, table, total

from .batching import ENDLESS, QUEUED, STARTED

MOST_COUNTED, COUNTS = 3.0, 14  # up to this mean the largest of Poisson numbers is summed up
LN_4_PI, EULER = 2.5310242469692907, 0.5772156649015329

# ---- equations: how far the largest of n counts of mean m lies above the mean ---------------------------------------


def even_excess(ranks):
    """A whole number of sequences shared out evenly: ceil(N/n) - N/n, mean over the remainders of N by n."""
    return (ranks - 1) / (2 * ranks)


def most_above(count):
    """How many standard deviations the largest of n normal numbers lies above their mean.

    With a = sqrt(2·ln n): a - (ln ln n + ln 4π - 2·0.577)/(2·a), the mean of the limiting distribution of extremes; at
    most (n - 1)/sqrt(2·n - 1), whatever the distribution (Hartley and David).
    """
    n = xp.maximum(count, 2.0)
    a = xp.sqrt(2 * xp.log(n))
    normal = a - (xp.log(xp.log(n)) + LN_4_PI - 2 * EULER) / (2 * a)
    bound = (xp.maximum(count, 1.0) - 1) / xp.sqrt(2 * xp.maximum(count, 1.0) - 1)
    return xp.minimum(normal, bound)


def random_excess(mean, ranks):
    """The largest of n Poisson numbers of mean m, on average, lies so many sqrt(m) above m; at most it is all."""
    return xp.minimum(most_above(ranks) * xp.sqrt(mean), (ranks - 1) * mean)


def largest_count(mean, ranks):
    """The largest of n Poisson numbers of mean m, on average: 1 - P(N <= j)^n summed over j, beyond m = 3 normal."""
    m = xp.minimum(mean, MOST_COUNTED)
    term, above, found = xp.exp(-m), -xp.expm1(-m), 0.0  # P(N = j), P(N > j)
    for j in range(COUNTS):
        found = found - xp.expm1(ranks * xp.log1p(-above))
        term = term * m / (j + 1)
        above = xp.maximum(above - term, 0.0)
    skewed = (most_above(ranks) ** 2 - 1) / 6  # a Poisson number leans to the right (Cornish and Fisher)
    return xp.where(mean > MOST_COUNTED, mean + random_excess(mean, ranks) + skewed, found)


def come_where_some(prompts):
    """Mean of a Poisson number that is so large where it is not 0, m/(1 - exp(-m)): an equation, by Newton's rule."""
    more = xp.maximum(prompts - 1, 0.0)
    mean = xp.maximum(more * (2 + more) / (1 + more), 1e-3)
    for _ in range(2):
        some = -xp.expm1(-mean)
        mean = xp.maximum(mean - (mean - prompts * some) / (some - more * (1 - some)), 1e-3)
    return mean


def longest_of(number, ratio, weight):
    """The longest of a Poisson number of lengths where there is any, over the mean one.

    With m of them on average, none is longer than what a part F of all is not with the chance exp(-m·(1 - F)).
    """
    found, longer = 0.0, 1.0
    for label in INNER.labels["length"]:
        own = at(weight, length=label)
        longer = xp.maximum(longer - own, 0.0)
        found = found - at(ratio, length=label) * xp.exp(-number * longer) * xp.expm1(-number * own)
    return found / -xp.expm1(-number)


def most_prompts(prompts, ranks, ratio, weight, even=False):
    """Prompts of the one of n ranks that has most of them, in mean lengths; there is at least one.

    They fall to ranks where answers have ended, as balls into bins, or ``even``ly, and are of different lengths: a sum
    of k of them varies by 1/sqrt(k) of that, and the less ranks have so many the more there are.
    """
    come = come_where_some(prompts)
    random = largest_count(come / ranks, ranks) / -xp.expm1(-come)
    count = xp.maximum(xp.where(even, prompts / ranks + even_excess(ranks), random), 1.0)
    hit = xp.maximum(xp.minimum(prompts, ranks), 1.0)
    alike = xp.where(even, hit, hit ** (1 / count))
    longer = xp.maximum(longest_of(come_where_some(alike), ratio, weight) - 1, 0.0)
    normal = xp.minimum(most_above(hit) * xp.sqrt(xp.maximum(total(ratio**2 * weight, "length") - 1, 0.0)), longer)
    normal = xp.where(even, normal, longer)
    return xp.where(ranks > 1, count * (1 + normal / xp.sqrt(count) + (longer - normal) / count), prompts / ranks)


# ---- who waits for whom ---------------------------------------------------------------------------------------------


@formula(unit="1", source="lepikhin2021gshard")
def lockstep_ranks(tp, dp, ep, etp, experts):
    """Replicas whose passes start together: those that share one copy of the experts."""
    return xp.where(experts > 0, xp.minimum(xp.maximum(ep * etp / tp, 1.0), dp), 1.0)


@formula(unit="1", source="hartley1954")
def busiest_prompts(
    prompts_of_an_iteration,
    lockstep_ranks,
    prompts_in_lockstep,
    prompt_ratio,
    length_weight,
    decode_steps,
    random_routing,
):
    """Prompts of the replica in lockstep that has most, in mean lengths, in an iteration that holds some.

    Where nothing else runs, the emptiest replica is the one with fewest of them.
    """
    even = xp.where(random_routing, False, decode_steps == 0)
    spread = most_prompts(prompts_of_an_iteration, lockstep_ranks, prompt_ratio, length_weight, even)
    return xp.where(prompts_in_lockstep > 0, xp.maximum(prompts_of_an_iteration / lockstep_ranks, 1.0), spread)


@alternative(of="busiest_replica_load", by="batch_rule", label=("rate", *STARTED), unit="1",
             source="raab1998balls, hartley1954", others={("given", *ENDLESS): 1.0})  # fmt: skip
def LABEL_busiest_replica_load(replica_batch, lockstep_ranks, random_routing):
    """Sequences of the replica with most over those of the mean one, among replicas in lockstep: one at least."""
    mean = xp.maximum(replica_batch, 1e-9)
    excess = xp.where(random_routing, random_excess(mean, lockstep_ranks), even_excess(lockstep_ranks))
    lone = xp.minimum(xp.maximum(1 - mean, 0.0), (lockstep_ranks - 1) * mean)
    return 1 + xp.where(lockstep_ranks > 1, xp.maximum(excess, lone) / mean, 0.0)


@alternative(of="mean_prompts", by="batch_rule", label="given", unit="1", source="pope2022inference")
def given_mean_prompts(prefill_sequences, prompts_in_lockstep, lockstep_ranks):
    """Prompts of the mean replica in lockstep: as many as of the others, as a batch starts together, or as stated."""
    return prefill_sequences * xp.where(prompts_in_lockstep > 0, prompts_in_lockstep / lockstep_ranks, 1.0)


@alternative(of="mean_prompts", by="batch_rule", label=QUEUED, unit="1", source="little1961")
def LABEL_mean_prompts(round_prompts, lockstep_ranks, even_prompting_rounds, prefill_passes):
    """Prompts of the mean replica in lockstep in an iteration that holds some, those that take several in each."""
    return round_prompts / (lockstep_ranks * even_prompting_rounds) * prefill_passes


@alternative(of="mean_prompts", by="batch_rule", label=STARTED, unit="1", source="little1961")
def LABEL_started_prompts(round_prompts, lockstep_ranks, even_prompting_rounds, prefill_passes, prefill_sequences):
    """Prompts of the mean replica in lockstep in an iteration that holds some, by load: all alike in the beginning."""
    loop = 1 - only("load", "node_2")
    mean = round_prompts / (lockstep_ranks * even_prompting_rounds) * prefill_passes
    return mean * loop + prefill_sequences * (1 - loop)


@formula(unit="1", source="lepikhin2021gshard")
def lockstep_fill(mean_prompts, prefill_sequences, busiest_replica_load, chunk_tokens, pass_tokens):
    """Tokens of the mean replica over those of the busiest one, among replicas in lockstep, by pass."""
    prompts, decoded = chunk_tokens, at(pass_tokens, **{"pass": "prefill"}) - chunk_tokens
    share = xp.minimum(mean_prompts / prefill_sequences, 1.0)
    mean = prompts * share + decoded / busiest_replica_load
    return table("pass", prefill=mean / (prompts + decoded), decode=1 / busiest_replica_load)
