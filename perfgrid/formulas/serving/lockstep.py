"""Ranks in lockstep: replicas that share experts start every pass together, and wait for the one with most to do.

A decoding step takes as long as that of the replica with most sequences. A router that sends each request to the
emptiest replica leaves them at most one sequence apart; one that does not look leaves them as balls in bins. Replicas
without a prompt join the exchanges of a prefill without tokens of their own.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import at, table

FIXED = ("given", "concurrency", "memory", "run")  # batches of one size
VARYING = ("rate", "clients")  # sequences come and go
LN_4_PI, EULER = 2.5310242469692907, 0.5772156649015329

# ---- equations: how far the largest of n counts of mean m lies above the mean ---------------------------------------


def even_excess(ranks):
    """A whole number of sequences shared out evenly: ceil(N/n) - N/n, mean over the remainders of N by n."""
    return (ranks - 1) / (2 * ranks)


def random_excess(mean, ranks):
    """The largest of n Poisson numbers of mean m, on average, lies so many sqrt(m) above m as that of n normal ones.

    With a = sqrt(2·ln n): a - (ln ln n + ln 4π - 2·0.577)/(2·a), the mean of the limiting distribution of extremes; at
    most (n - 1)/sqrt(2·n - 1), whatever the distribution (Hartley and David), and at most all.
    """
    n = xp.maximum(ranks, 2.0)
    a = xp.sqrt(2 * xp.log(n))
    normal = a - (xp.log(xp.log(n)) + LN_4_PI - 2 * EULER) / (2 * a)
    normal = xp.minimum(normal, (n - 1) / xp.sqrt(2 * n - 1))
    return xp.minimum(normal * xp.sqrt(mean), (ranks - 1) * mean)


# ---- who waits for whom ---------------------------------------------------------------------------------------------


@formula(unit="1", source="lepikhin2021gshard")
def lockstep_ranks(tp, dp, ep, etp, experts):
    """Replicas whose passes start together: those that share one copy of the experts."""
    return xp.where(experts > 0, xp.minimum(xp.maximum(ep * etp / tp, 1.0), dp), 1.0)


def with_prompts(ranks, stated, prompts):
    """Replicas in lockstep that have a prompt in a pass of the prefill: as many as stated, or as there are prompts."""
    return xp.minimum(xp.where(stated > 0, xp.maximum(stated, 1.0), prompts), ranks)


@formula(unit="1", source="zhong2024distserve")
def prompting_ranks(lockstep_ranks, prompts_in_lockstep, prompts_of_an_iteration):
    """Replicas in lockstep that have a prompt in a pass of the prefill."""
    return with_prompts(lockstep_ranks, prompts_in_lockstep, prompts_of_an_iteration)


@alternative(of="busiest_replica_load", by="batch_rule", label=FIXED, unit="1", source="pope2022inference")
def LABEL_even_replica_load():
    """Sequences of the replica with most over those of the mean one: a batch of one size is shared out evenly."""
    return 1.0


@alternative(of="busiest_replica_load", by="batch_rule", label=VARYING, unit="1", source="raab1998balls, hartley1954")
def LABEL_busiest_replica_load(replica_batch, lockstep_ranks, random_routing):
    """Sequences of the replica with most over those of the mean one, among replicas in lockstep."""
    mean = xp.maximum(replica_batch, 1e-9)
    excess = xp.where(random_routing, random_excess(mean, lockstep_ranks), even_excess(lockstep_ranks))
    return 1 + xp.where(lockstep_ranks > 1, excess / mean, 0.0)


@formula(unit="1", source="lepikhin2021gshard")
def lockstep_fill(prompting_ranks, lockstep_ranks, busiest_replica_load, chunk_tokens, pass_tokens):
    """Tokens of the mean replica over those of the busiest one, among replicas in lockstep, by pass."""
    prompts, decoded = chunk_tokens, at(pass_tokens, **{"pass": "prefill"}) - chunk_tokens
    mean = prompts * prompting_ranks / lockstep_ranks + decoded / busiest_replica_load
    return table("pass", prefill=mean / (prompts + decoded), decode=1 / busiest_replica_load)
