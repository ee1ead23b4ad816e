"""Parallel groups: their sizes and strides and where their ranks lie on the fabric.

Two factorisations of one rank order, innermost first (that of Megatron-LM): dense ``tp``, ``cp``, ``dp``, ``pp``, and
of the experts ``etp``, ``ep``, ``edp``, ``pp``, with tp·cp·dp = etp·ep·edp. The label ``rank_order`` puts the
data-parallel ranks inside the pipeline (tp-cp-dp-pp) or, as Llama 3 does, around it (tp-cp-pp-dp).

A group is a size and a stride: the distance between neighbouring ranks, the product of the sizes of all groups inside
it. The groups are a family; beside those of the two orders:

* ``replica``: ranks with the same dense weights (cp·dp of them), ``expert_replica``: with the same experts (edp);
* ``shard`` and ``expert_shard``: the part of these over which state is sharded, ``scatter``: the ranks of ``shard``
  while they reduce-scatter gradients, ``shard_replica``: ranks with the same shard;
* ``vocab``, ``operand``, ``latent``: the tensor-parallel ranks, each with a message of its own;
* ``sequence_split`` and ``head_split``: the factors of ``cp``; ``tied``: the two stages with a shared embedding table.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula, synonyms
from perfgrid.engine.graph.tables import bind, by_label, constants, positive
from perfgrid.formulas.axes import at
from perfgrid.formulas.collectives.placement import GATHERING, by_tier, placed, ranks_in_domain
from perfgrid.formulas.transformer.parameters import LAID_OUT

PLACED = {  # by size and stride alone
    "GROUP": {
        **{group: group for group in ("tp", "cp", "etp", "ep", "pp", "sequence_split", "head_split", "tied")},
        **{group: "tp" for group in ("vocab", "operand", "latent")},
    }
}
CHECKED = {"GROUP": ("tp", "cp", "replica")}  # those whose domains the constraints look at
ALSO_OF_EXPERTS = {"EXPERT_": ("", "expert_")}  # quantities of dense weights that the experts have as well
EXPERTS_CHECKED = {"GROUP": ("etp", "ep", "expert_replica")}  # and in mixtures of experts

SIZE, STRIDE, TIERS = "Ranks of the group.", "Distance between neighbouring ranks.", "Ranks of the group by tier."
FORMULAS = (
    *constants(
        {
            f"{group}_stride": (1.0, "1", "narayanan2021", STRIDE)
            for group in ("tp", "etp", "vocab", "operand", "latent")
        }
    ),
    *synonyms(
        {
            "vocab": ("tp", "1", "shoeybi2019megatron", SIZE),
            "operand": ("tp", "1", "korthikanti2022", SIZE),
            "latent": ("tp", "1", "nvidia2026latent", SIZE),
            "cp_stride": ("tp", "1", "liu2023ring", STRIDE),
            "head_split_stride": ("tp", "1", "jacobs2023ulysses", STRIDE),
            "ep_stride": ("etp", "1", "lepikhin2021gshard", STRIDE),
            "expert_replica": ("edp", "1", "lepikhin2021gshard", "Ranks that hold the same experts."),
            "scatter": ("shard", "1", "rajbhandari2020zero", SIZE),
            "scatter_stride": ("shard_stride", "1", "rajbhandari2020zero", STRIDE),
            "scatter_tier_ranks": ("shard_tier_ranks", "1", "rajbhandari2020zero", TIERS),
            "shard_stride": ("replica_stride", "1", "rajbhandari2020zero", STRIDE),
            "expert_shard_stride": ("expert_replica_stride", "1", "rajbhandari2020zero", STRIDE),
            "collective_launch_latency": (
                *("launch_overhead", "s", "gray2019cudagraphs"),
                "Latency of a collective until its first step: that of any kernel, since the host queues them ahead.",
            ),
        }
    ),
    *bind(placed, "GROUP_tier_ranks", "GROUP GROUP_stride tier_size", "1", "narayanan2021", family=PLACED),
    *bind(
        *(placed, "contiguous_replica_tier_ranks", "replica tp tier_size", "1", "narayanan2021"),
        of=("replica_tier_ranks", "rank_order", "tp-cp-dp-pp"),
    ),
    *by_label(  # on switches ranks may lie anywhere
        "library",
        {
            "stages_placed": ("1", "narayanan2021", "1 where pipeline stages can be placed."),
            "one_distance": ("1", "narayanan2021", "1 where collectives run among ranks at these distances."),
        },
        {"nccl": (1, 1)},
    ),
    *by_label(
        "rank_order",
        {
            "experts_inside": (
                *("1", "narayanan2021"),
                "1 where the experts of one copy lie on ranks side by side: always inside the stages of a pipeline.",
            )
        },
        {"tp-cp-dp-pp": (1,)},
    ),
    *positive(
        *("GROUP_fills_tiers", "GROUP_fills", "narayanan2021"),
        "The GROUP group fills whole domains of every tier that it touches.",
        "the GROUP ranks do not fill the domains of the fabric evenly",
        family=CHECKED,
    ),
    *positive(
        *("stages_fill_tiers", "stages_placed", "narayanan2021"),
        "The pipeline stages fill whole domains of every tier that they touch.",
        "the pipeline stages do not fill the domains of the fabric evenly",
    ),
    *positive(
        *("experts_adjoin", "experts_inside", "grattafiori2024llama3"),
        "The experts of one copy lie on neighbouring ranks.",
        "in the rank order tp-cp-pp-dp etp x ep must divide tp x cp: choose tp-cp-dp-pp",
    ),
    *positive(
        *("replicas_at_one_distance", "one_distance", "narayanan2021"),
        "The ranks that hold the same weights have a schedule on the fabric.",
        "on ideal fabrics ranks with the same weights must be evenly spaced: choose the rank order tp-cp-dp-pp",
    ),
)


# ---- groups: size, and distance between neighbours ------------------------------------------------------------------


@formula(unit="1", source="nvidia2026megatroncore")
def etp(tp, ep):
    """Ranks that split each expert, where a study states none: the tensor-parallel ranks that `ep` leaves.

    One copy of all experts then lies on whole tensor-parallel groups, as in Megatron-Core, TensorRT-LLM and vLLM.
    """
    return xp.where(tp % ep == 0, tp / ep, xp.where(ep % tp == 0, 1.0, tp))


@formula(unit="1", source="lepikhin2021gshard")
def edp(tp, cp, dp, etp, ep):
    """Ranks that hold the same experts: tp·cp·dp ranks of a stage over etp·ep ranks of one copy of all experts."""
    return tp * cp * dp / (etp * ep)


@alternative(of="dp_stride", by="rank_order", label="tp-cp-dp-pp", unit="1", source="narayanan2021")
def inner_dp_stride(tp, cp):
    """Distance between neighbouring data-parallel ranks inside the stages of a pipeline."""
    return tp * cp


@alternative(of="dp_stride", by="rank_order", label="tp-cp-pp-dp", unit="1", source="grattafiori2024llama3")
def outer_dp_stride(tp, cp, pp):
    """Distance between neighbouring data-parallel ranks around whole pipelines."""
    return tp * cp * pp


@alternative(of="pp_stride", by="rank_order", label="tp-cp-dp-pp", unit="1", source="narayanan2021")
def outer_pp_stride(tp, cp, dp):
    """Distance between neighbouring pipeline stages around the data-parallel ranks."""
    return tp * cp * dp


@alternative(of="pp_stride", by="rank_order", label="tp-cp-pp-dp", unit="1", source="grattafiori2024llama3")
def inner_pp_stride(tp, cp):
    """Distance between neighbouring pipeline stages inside the data-parallel ranks."""
    return tp * cp


@formula(unit="1", source="narayanan2021")
def tied(pp, folded, weight_copies, tied_embeddings, mtp_layers):
    """Stages that hold a copy of a shared embedding table: the first, and the last for its head or further tokens.

    Two if they lie on different devices. In a V both are on one device, in DualPipe on each of two.
    """
    apart = (pp > 1) & (folded == 0) & (weight_copies == 1)
    return xp.where((tied_embeddings | (mtp_layers > 0)) & apart, 2.0, 1.0)


@formula(unit="1", source="narayanan2021")
def tied_stride(pp, pp_stride):
    """Distance between the first and the last stage."""
    return pp_stride * xp.maximum(pp - 1, 1.0)


@formula(unit="1", source="grattafiori2024llama3")
def replica(cp, dp):
    """Ranks that hold the same dense weights: those of all parts of a sequence and of all parts of a batch."""
    return cp * dp


@formula(unit="1", source="grattafiori2024llama3")
def replica_stride(tp, cp, dp_stride):
    """Distance between neighbouring ranks that hold the same dense weights."""
    return xp.where(cp > 1, tp, dp_stride)


@formula(unit="1", source="lepikhin2021gshard")
def expert_replica_stride(etp, ep, tp, cp, dp_stride):
    """Distance between neighbouring ranks that hold the same experts.

    They adjoin inside a data-parallel rank while its tp·cp ranks hold several copies of all experts; otherwise one copy
    covers etp·ep/(tp·cp) data-parallel ranks.
    """
    return xp.where(etp * ep < tp * cp, etp * ep, dp_stride * (etp * ep / (tp * cp)))


@formula(unit="1", source="rajbhandari2020zero")
def shard(replica, zero, zero_size):
    """Ranks over which dense state is sharded, from ZeRO stage 1 on: all replicas, or ``zero_size`` of them."""
    return xp.where(zero >= 1, xp.where(zero_size > 0, xp.minimum(zero_size, replica), replica), 1.0)


@formula(unit="1", source="zhao2023fsdp")
def shard_replica(replica, shard):
    """Ranks that hold the same shard of the state: replicas of the sharding group."""
    return replica / shard


@formula(unit="1", source="rajbhandari2020zero")
def expert_shard(expert_replica, zero):
    """Ranks over which the state of experts is sharded: all that hold them, from ZeRO stage 1 on."""
    return xp.where(zero >= 1, expert_replica, 1.0)


@formula(unit="1", source="zhao2023fsdp")
def shard_replica_stride(replica_stride, shard):
    """Distance between neighbouring ranks that hold the same shard."""
    return replica_stride * shard


# ---- placement: ranks inside one scale-up domain, and domains -------------------------------------------------------


@alternative(of="replica_tier_ranks", by="rank_order", label="tp-cp-pp-dp", unit="1", source="grattafiori2024llama3")
def spread_replica_tier_ranks(replica, cp_tier_ranks, dp, dp_stride, tier_size):
    """Ranks with the same dense weights at each tier, with the pipeline between data-parallel ranks; by tier."""
    around = ranks_in_domain(dp, dp_stride, at(tier_size, tier="scale_up"))
    return by_tier(replica, at(cp_tier_ranks, tier="scale_up") * around)


@alternative(
    of="expert_replica_tier_ranks", by="rank_order", label="tp-cp-dp-pp", unit="1", source="lepikhin2021gshard"
)
def contiguous_expert_replica_tier_ranks(edp, etp, ep, tier_size):
    """Ranks with the same experts at each tier, one after the other; by tier."""
    return placed(edp, etp * ep, tier_size)


@alternative(
    of="expert_replica_tier_ranks", by="rank_order", label="tp-cp-pp-dp", unit="1", source="lepikhin2021gshard"
)
def spread_expert_replica_tier_ranks(etp, ep, tp, cp, edp, dp_stride, tier_size):
    """Ranks with the same experts at each tier, with the pipeline between data-parallel ranks; by tier."""
    domain = at(tier_size, tier="scale_up")
    beside = xp.maximum(tp * cp / (etp * ep), 1.0)
    distance = dp_stride * xp.maximum(etp * ep / (tp * cp), 1.0)
    inside = ranks_in_domain(beside, etp * ep, domain) * ranks_in_domain(edp / beside, distance, domain)
    return by_tier(edp, inside)


@formula(unit="1", source="rajbhandari2020zero", family=ALSO_OF_EXPERTS)
def EXPERT_shard_tier_ranks(EXPERT_shard, EXPERT_replica_tier_ranks):
    """Ranks of the group EXPERT_shard at each tier: it fills a domain before it leaves it; by tier."""
    return by_tier(EXPERT_shard, xp.minimum(EXPERT_shard, at(EXPERT_replica_tier_ranks, tier="scale_up")))


@formula(unit="1", source="zhao2023fsdp")
def shard_replica_tier_ranks(replica_tier_ranks, shard_tier_ranks):
    """Ranks with the same shard at each tier: what the sharding group leaves of the replicas; by tier."""
    return replica_tier_ranks / shard_tier_ranks


@alternative(
    of="GROUP_fills",
    by="library",
    label="nccl",
    unit="1",
    source="narayanan2021",
    family={"GROUP": (*GATHERING["GROUP"], "ep")},
)
def GROUP_fills_domains(GROUP_tier_ranks):
    """1 where the GROUP group has a whole number of ranks in each scale-up domain that it touches."""
    inside = at(GROUP_tier_ranks, tier="scale_up")
    return xp.where(inside == xp.round(inside), 1.0, 0.0)


@constraint(
    reason="the GROUP ranks do not fill the domains of the fabric evenly",
    source="narayanan2021",
    family=EXPERTS_CHECKED,
)
def GROUP_fills_tiers_of_experts(GROUP_fills, experts):
    """The GROUP group of a mixture of experts fills whole domains of every tier that it touches."""
    return (experts == 0) | (GROUP_fills > 0)


@constraint(reason="tp x cp x dp x pp is not the number of devices", source="narayanan2021", workload=LAID_OUT)
def layout_fills_cluster(tp, cp, dp, pp, devices):
    """The parallel ranks are exactly the devices of the cluster."""
    return tp * cp * dp * pp == devices


@constraint(
    reason="etp x ep does not divide the tp x cp x dp ranks of a stage", source="lepikhin2021gshard", workload=LAID_OUT
)
def experts_fill_stage(tp, cp, dp, etp, ep):
    """The ranks of a stage hold a whole number of copies of all experts."""
    return (tp * cp * dp) % (etp * ep) == 0


@constraint(
    reason="the model has no experts to distribute over ep ranks", source="lepikhin2021gshard", workload=LAID_OUT
)
def experts_exist(experts, ep):
    """Expert parallelism needs experts."""
    return (experts > 0) | (ep == 1)


@alternative(of="experts_inside", by="rank_order", label="tp-cp-pp-dp", unit="1", source="grattafiori2024llama3")
def experts_inside_sequence(tp, cp, pp, etp, ep):
    """1 where the experts of one copy lie on ranks side by side: not across data-parallel ranks around the pipeline."""
    return xp.where(((tp * cp) % (etp * ep) == 0) | (pp == 1), 1.0, 0.0)


@alternative(of="one_distance", by="library", label="ideal", unit="1", source="narayanan2021")
def same_distance(tp, cp, dp, dp_stride, replica, expert_replica, etp, ep):
    """1 where all ranks with the same weights lie at one distance, as the schedules of ideal fabrics assume."""
    around = (dp > 1) & (dp_stride > tp * cp)
    return xp.where(around & ((cp > 1) | (etp * ep < tp * cp)), 0.0, 1.0)
