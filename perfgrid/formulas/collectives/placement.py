"""Groups of ranks that run collectives: their place on the tiers, and the algorithm that a study names for them.

An all-gather of a message of B bytes per rank (its gathered size); a reduce-scatter is its mirror image and costs the
same. An all-reduce has a schedule of its own: a reduce-scatter whose parts go straight on into an all-gather. The label
``library`` of a fabric says who runs them: NCCL (`nccl`), or the fastest schedule that the links allow (`ideal`).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import constraint, formula, synonyms
from perfgrid.engine.graph.tables import constants
from perfgrid.formulas.axes import at, table
from perfgrid.formulas.collectives.schedules.schedule import UNAVAILABLE

SAME_RANKS = {  # group -> the group whose ranks it has
    **dict.fromkeys(("vocab", "operand", "latent"), "tp"),
    "scatter": "shard",
}
GATHERING = {  # groups of ranks that run all-gathers, reduce-scatters and all-reduces
    "GROUP": (
        *("tp", "cp", "etp", "vocab", "operand", "latent", "tied"),
        *("replica", "shard", "scatter", "shard_replica", "expert_replica", "expert_shard"),
    )
}
RANKS = {"GROUP": {group: SAME_RANKS.get(group, group) for group in GATHERING["GROUP"]}}  # each set of ranks once
MOST_EMPTY = 8  # places of a domain, and never more than half of them
CALLS = ("gather", "all_reduce")
TENSOR = ("tp", "etp", "vocab", "operand", "latent")
DATA = ("replica", "shard", "scatter", "shard_replica", "expert_replica", "expert_shard")
CROSSING = {"GROUP": ("tp", "cp", "etp", "replica", "expert_replica", "pp")}  # groups whose bytes take energy


NAMED = "Number of the algorithm that the study names for these ranks; 0 for the fastest."
FORMULAS = (
    *synonyms({f"{group}_named_algorithm": ("tp_algorithm", "1", "thakur2005", NAMED) for group in TENSOR}),
    *synonyms({f"{group}_named_algorithm": ("dp_algorithm", "1", "thakur2005", NAMED) for group in DATA}),
    *constants({f"{group}_named_algorithm": (0.0, "1", "thakur2005", NAMED) for group in ("cp", "tied", "pp")}),
)
# ---- equations ------------------------------------------------------------------------------------------------------


def gathered_share(n):
    """Part of the message that each of n ranks receives from others: (n - 1)/n, the bandwidth bound of every algorithm.

    Source: chan2007collective, table 1.
    """
    return (n - 1) / n


def crossing_share(inside, outside):
    """Part of a group's traffic that leaves the domains: (o - 1)/(n - 1) of hierarchical collectives and of chains."""
    members = inside * outside
    return (outside - 1) / xp.maximum(members - 1, 0.5)  # of one member: 0; no kink at two


def ranks_in_domain(size, stride, domain):
    """Ranks of a group of this size and stride inside one scale-up domain.

    domain/stride of them fit. A group that does not fill whole domains leaves the same few places of each empty (36
    ranks on nodes of 8 are 6 x 6), or takes a power-of-two part of as many domains as it needs (64 of 72 devices, say).
    """
    most = xp.minimum(xp.maximum(xp.floor(domain / stride), 1.0), size)
    domains = 2.0 ** xp.ceil(xp.log2(size / most))
    for empty in range(MOST_EMPTY, -1, -1):
        members = xp.maximum(most - empty, xp.ceil(most / 2))
        domains = xp.where(size % members == 0, xp.round(size / members), domains)
    return size / domains


def by_tier(size, inside):
    """Ranks inside one scale-up domain, and the domains that the group spans; by tier."""
    return table("tier", scale_up=inside, scale_out=size / inside)


def placed(size, stride, tier_size):
    """Ranks at each tier of a group at one distance, by tier."""
    return by_tier(size, ranks_in_domain(size, stride, at(tier_size, tier="scale_up")))


def outermost(values, tier_ranks):
    """The value at the outermost tier on which a group has several members."""
    inside, between = at(values, tier="scale_up"), at(values, tier="scale_out")
    return xp.where(at(tier_ranks, tier="scale_out") > 1, between, inside)


# ---- constraints ----------------------------------------------------------------------------------------------------


@constraint(
    reason="the chosen collective algorithm of the GROUP ranks is not offered by this fabric or software",
    source="thakur2005",
    family={"GROUP": ("tp", "replica", "etp", "expert_replica")},
)
def GROUP_algorithms_offered(GROUP_longest_call_time):
    """The algorithms that the study fixes for the GROUP ranks exist; the fastest of those on offer always does."""
    return GROUP_longest_call_time < UNAVAILABLE


# ---- traffic between domains ----------------------------------------------------------------------------------------


@formula(unit="1", source="cho2019blueconnect", family=CROSSING)
def GROUP_crossing_share(GROUP_tier_ranks):
    """Part of the traffic of the GROUP group that leaves the scale-up domain: (o - 1)/(n - 1), as `crossing_share`."""
    return crossing_share(at(GROUP_tier_ranks, tier="scale_up"), at(GROUP_tier_ranks, tier="scale_out"))
