"""Collectives: the families of groups that run them, and what all of them share.

An all-gather of a message of B bytes per rank (its gathered size); a reduce-scatter is its mirror image and costs the
same. An all-reduce is one schedule of its own: a reduce-scatter whose parts go straight on into an all-gather. The
label ``library`` of a fabric says who runs them: `library` (NCCL), or `fabrics` the fastest schedule that the
links allow.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import constraint, formula
from perfgrid.formulas.axes import at

GATHERING = {  # groups of ranks on the fabric that gather or reduce-scatter
    "GROUP": (
        *("tp", "cp", "etp", "vocab", "operand", "latent", "tied"),
        *("replica", "shard", "scatter", "shard_replica", "expert_replica", "expert_shard"),
    )
}
REDUCING = GATHERING  # whoever gathers may all-reduce as well
CROSSING = {"GROUP": ("tp", "cp", "etp", "replica", "expert_replica", "pp")}  # groups whose bytes take energy

# ---- equations: B bytes among n ranks -------------------------------------------------------------------------------


def gathered_share(n):
    """Part of the message that each rank receives from others: (n - 1)/n, the bandwidth bound of every algorithm."""
    return (n - 1) / n


def crossing_share(inside, outside):
    """Part of a group's traffic that leaves the domains: (o - 1)/(n - 1) of hierarchical collectives and of chains."""
    members = inside * outside
    return (outside - 1) / xp.maximum(members - 1, 0.5)  # of one member: 0; no kink at two


# ---- bindings: what a study may name --------------------------------------------------------------------------------


@formula(unit="s", source="thakur2005")
def unavailable():
    """Time of an algorithm that is not offered: longer than any run, small enough for products in single precision."""
    return 1e10


@formula(unit="1", source="thakur2005", family={"GROUP": ("tp", "etp", "vocab", "operand", "latent")})
def GROUP_named_algorithm(tp_algorithm):
    """Number of the algorithm that the study names for the GROUP ranks; 0 for the fastest."""
    return tp_algorithm


@formula(
    unit="1",
    source="thakur2005",
    family={"SHARED": ("replica", "shard", "scatter", "shard_replica", "expert_replica", "expert_shard")},
)
def SHARED_named_algorithm(dp_algorithm):
    """Number of the algorithm that the study names for the SHARED ranks; 0 for the fastest."""
    return dp_algorithm


@formula(unit="1", source="thakur2005", family={"FREE": ("cp", "tied", "pp")})
def FREE_named_algorithm():
    """Number of the algorithm that the study names for the FREE ranks: none, 0."""
    return 0.0


# ---- what was chosen ------------------------------------------------------------------------------------------------


@constraint(
    kind="illegal",
    reason="the chosen collective algorithm of the GROUP ranks is not offered by this fabric or software",
    source="thakur2005",
    family={"GROUP": ("tp", "replica", "etp", "expert_replica")},
)
def GROUP_algorithms_offered(GROUP_longest_call_time, unavailable):
    """The algorithms that the study fixes for the GROUP ranks exist; the fastest of those on offer always does."""
    return GROUP_longest_call_time < unavailable


# ---- traffic between domains ----------------------------------------------------------------------------------------


@formula(unit="1", source="cho2019blueconnect", family=CROSSING)
def GROUP_crossing_share(GROUP_tier_ranks):
    """Part of the traffic of the GROUP group that leaves the scale-up domain."""
    return crossing_share(at(GROUP_tier_ranks, tier="scale_up"), at(GROUP_tier_ranks, tier="scale_out"))
