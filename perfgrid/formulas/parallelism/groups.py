"""Parallel groups: where their ranks lie on the fabric; and what pipeline stages hand over.

Two factorisations of one rank order, innermost first (that of Megatron-LM): dense ``tp``, ``cp``, ``dp``, ``pp``, and
of the experts ``etp``, ``ep``, ``edp``, ``pp`` with tp·cp·dp = etp·ep·edp. The groups are a family: beside these
``replica`` are the ranks that hold the same dense weights (cp·dp of them), ``expert_replica`` those that hold the same
experts (edp), ``shard`` and ``expert_shard`` the part of these over which state is sharded (``scatter`` the same ranks
while they scatter gradients), ``shard_replica`` those that hold the same shard, ``vocab`` the ranks among which the
vocabulary is split and ``operand`` those that gather operands of products (both those of ``tp``), ``tied`` the two
stages that hold a shared embedding table. The label ``rank_order`` puts the data-parallel ranks inside the pipeline or,
as Llama 3 does, around it.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.axes import at, table
from perfgrid.formulas.collectives.collectives import GATHERING

CONTIGUOUS = {  # ranks at one distance in either rank order
    "GROUP": ("tp", "cp", "etp", "ep", "pp", "vocab", "operand", "latent", "sequence_split", "head_split", "tied")
}
SPREAD = {  # also around the stages of a pipeline
    "GROUP": ("replica", "expert_replica", "shard", "scatter", "shard_replica", "expert_shard")
}
PLACED = {"GROUP": ("tp", "cp", "replica")}  # those whose domains the constraints look at
EXPERT_PLACED = {"GROUP": ("etp", "ep", "expert_replica")}  # and in mixtures of experts

# ---- equations ------------------------------------------------------------------------------------------------------


def ranks_in_domain(size, stride, domain):
    """Ranks of a group of this size and stride inside one domain.

    A group that does not fill whole domains takes a power-of-two part of as many as it needs (64 of 72, say).
    """
    most = xp.minimum(xp.maximum(xp.floor(domain / stride), 1.0), size)
    spread = size / most
    domains = xp.where(size % most == 0, spread, 2.0 ** xp.ceil(xp.log2(spread)))
    return size / domains


def outermost(by_tier, tier_ranks):
    """The value at the outermost tier on which a group has several members."""
    inside, between = at(by_tier, tier="scale_up"), at(by_tier, tier="scale_out")
    return xp.where(at(tier_ranks, tier="scale_out") > 1, between, inside)


# ---- groups: size, and distance between neighbours ------------------------------------------------------------------


@formula(unit="1", source="narayanan2021", family={"INNERMOST": ("tp", "etp", "vocab", "operand", "latent")})
def INNERMOST_stride():
    """Distance between neighbouring ranks of the INNERMOST group."""
    return 1.0


@formula(unit="1", source="shoeybi2019megatron")
def vocab(tp):
    """Ranks among which the vocabulary is split: the tensor-parallel ones."""
    return tp


@formula(unit="1", source="liu2023ring")
def cp_stride(tp):
    """Distance between neighbouring context-parallel ranks."""
    return tp


@formula(unit="1", source="lepikhin2021gshard")
def ep_stride(etp):
    """Distance between neighbouring expert-parallel ranks."""
    return etp


@formula(unit="1", source="lepikhin2021gshard")
def edp(tp, cp, dp, etp, ep):
    """Ranks that hold the same experts: what is left of the ranks of one stage."""
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
    """Stages that hold a copy of a shared embedding table: the first and the last, for its head or further tokens.

    In a V both are on one device, in DualPipe on each of two.
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
def expert_replica(edp):
    """Ranks that hold the same experts."""
    return edp


@formula(unit="1", source="lepikhin2021gshard")
def expert_replica_stride(etp, ep, tp, cp, dp_stride):
    """Distance between neighbouring ranks that hold the same experts."""
    return xp.where(etp * ep < tp * cp, etp * ep, dp_stride * (etp * ep / (tp * cp)))


@formula(unit="1", source="rajbhandari2020zero")
def shard(replica, zero, zero_size):
    """Ranks over which dense state is sharded, from ZeRO stage 1 on: all that hold the same weights, or zero_size."""
    return xp.where(zero >= 1, xp.where(zero_size > 0, xp.minimum(zero_size, replica), replica), 1.0)


@formula(unit="1", source="rajbhandari2020zero")
def scatter(shard):
    """Ranks that reduce and scatter gradients among them: those of the sharding group."""
    return shard


@formula(unit="1", source="zhao2023fsdp")
def shard_replica(replica, shard):
    """Ranks that hold the same shard of the state: replicas of the sharding group."""
    return replica / shard


@formula(unit="1", source="rajbhandari2020zero")
def expert_shard(expert_replica, zero):
    """Ranks over which the state of experts is sharded: all that hold them, from ZeRO stage 1 on."""
    return xp.where(zero >= 1, expert_replica, 1.0)


@formula(unit="1", source="rajbhandari2020zero", family={"SHARDING": ("shard", "scatter")})
def SHARDING_stride(replica_stride):
    """Distance between neighbouring ranks of a sharding group (SHARDING)."""
    return replica_stride


@formula(unit="1", source="zhao2023fsdp")
def shard_replica_stride(replica_stride, shard):
    """Distance between neighbouring ranks that hold the same shard."""
    return replica_stride * shard


@formula(unit="1", source="rajbhandari2020zero")
def expert_shard_stride(expert_replica_stride):
    """Distance between neighbouring ranks over which the state of experts is sharded."""
    return expert_replica_stride


# ---- placement ------------------------------------------------------------------------------------------------------


@formula(unit="1", source="narayanan2021", family=CONTIGUOUS)
def GROUP_domain_ranks(GROUP, GROUP_stride, tier_size):
    """Ranks of the GROUP group inside one scale-up domain."""
    return ranks_in_domain(GROUP, GROUP_stride, at(tier_size, tier="scale_up"))


@alternative(of="replica_domain_ranks", by="rank_order", label="tp-cp-dp-pp", unit="1", source="narayanan2021")
def contiguous_replica_domain_ranks(replica, tp, tier_size):
    """Ranks inside one scale-up domain that hold the same dense weights, one after the other."""
    return ranks_in_domain(replica, tp, at(tier_size, tier="scale_up"))


@alternative(of="replica_domain_ranks", by="rank_order", label="tp-cp-pp-dp", unit="1", source="grattafiori2024llama3")
def spread_replica_domain_ranks(cp_domain_ranks, dp, dp_stride, tier_size):
    """Ranks inside one scale-up domain that hold the same dense weights, with the pipeline between them."""
    return cp_domain_ranks * ranks_in_domain(dp, dp_stride, at(tier_size, tier="scale_up"))


@alternative(
    of="expert_replica_domain_ranks", by="rank_order", label="tp-cp-dp-pp", unit="1", source="lepikhin2021gshard"
)
def contiguous_expert_replica_domain_ranks(edp, etp, ep, tier_size):
    """Ranks inside one scale-up domain that hold the same experts, one after the other."""
    return ranks_in_domain(edp, etp * ep, at(tier_size, tier="scale_up"))


@alternative(
    of="expert_replica_domain_ranks", by="rank_order", label="tp-cp-pp-dp", unit="1", source="lepikhin2021gshard"
)
def spread_expert_replica_domain_ranks(etp, ep, tp, cp, edp, dp_stride, tier_size):
    """Ranks inside one scale-up domain that hold the same experts, with the pipeline between them."""
    domain = at(tier_size, tier="scale_up")
    beside = xp.maximum(tp * cp / (etp * ep), 1.0)
    distance = dp_stride * xp.maximum(etp * ep / (tp * cp), 1.0)
    return ranks_in_domain(beside, etp * ep, domain) * ranks_in_domain(edp / beside, distance, domain)


@formula(unit="1", source="rajbhandari2020zero", family={"SHARDING": ("shard", "scatter")})
def SHARDING_domain_ranks(SHARDING, replica_domain_ranks):
    """Ranks of a sharding group (SHARDING) inside one scale-up domain."""
    return xp.minimum(SHARDING, replica_domain_ranks)


@formula(unit="1", source="zhao2023fsdp")
def shard_replica_domain_ranks(replica_domain_ranks, shard_domain_ranks):
    """Ranks inside one scale-up domain that hold the same shard."""
    return replica_domain_ranks / shard_domain_ranks


@formula(unit="1", source="rajbhandari2020zero")
def expert_shard_domain_ranks(expert_shard, expert_replica_domain_ranks):
    """Ranks inside one scale-up domain over which the state of experts is sharded."""
    return xp.minimum(expert_shard, expert_replica_domain_ranks)


@formula(unit="1", source="narayanan2021", family={"GROUP": (*CONTIGUOUS["GROUP"], *SPREAD["GROUP"])})
def GROUP_tier_ranks(GROUP, GROUP_domain_ranks):
    """Ranks of the GROUP group at each tier: inside one scale-up domain, and domains; by tier."""
    return table("tier", scale_up=GROUP_domain_ranks, scale_out=GROUP / GROUP_domain_ranks)


@alternative(
    of="GROUP_fills", by="library", label="nccl", unit="1", source="narayanan2021",
    family={"GROUP": (*GATHERING["GROUP"], "ep")},
)  # fmt: skip
def GROUP_fills_domains(GROUP_tier_ranks):
    """1 where the GROUP group has a whole number of ranks in each scale-up domain that it touches."""
    inside = at(GROUP_tier_ranks, tier="scale_up")
    return xp.where(inside == xp.round(inside), 1.0, 0.0)


@constraint(
    kind="illegal",
    reason="the GROUP ranks do not fill the domains of the fabric evenly",
    source="narayanan2021",
    family=PLACED,
)
def GROUP_fills_tiers(GROUP_fills):
    """The GROUP group fills whole domains of every tier that it touches."""
    return GROUP_fills > 0


@constraint(
    kind="illegal",
    reason="the GROUP ranks do not fill the domains of the fabric evenly",
    source="narayanan2021",
    family=EXPERT_PLACED,
)
def GROUP_fills_tiers_of_experts(GROUP_fills, experts):
    """The GROUP group of a mixture of experts fills whole domains of every tier that it touches."""
    return (experts == 0) | (GROUP_fills > 0)


@alternative(of="stages_placed", by="library", label="nccl", unit="1", source="narayanan2021")
def switched_stages():
    """1 where pipeline stages can be placed: on switches always."""
    return 1.0


@constraint(
    kind="illegal", reason="the pipeline stages do not fill the domains of the fabric evenly", source="narayanan2021"
)
def stages_fill_tiers(stages_placed):
    """The pipeline stages fill whole domains of every tier that they touch."""
    return stages_placed > 0


@constraint(
    kind="illegal",
    reason="tp x cp x dp x pp is not the number of devices",
    source="narayanan2021",
    workload=("training", "inference"),
)
def layout_fills_cluster(tp, cp, dp, pp, devices):
    """The parallel ranks are exactly the devices of the cluster."""
    return tp * cp * dp * pp == devices


@constraint(
    kind="illegal",
    reason="etp x ep does not divide the tp x cp x dp ranks of a stage",
    source="lepikhin2021gshard",
    workload=("training", "inference"),
)
def experts_fill_stage(tp, cp, dp, etp, ep):
    """The ranks of a stage hold a whole number of copies of all experts."""
    return (tp * cp * dp) % (etp * ep) == 0


@constraint(
    kind="illegal",
    reason="there are no experts to spread over ep or etp ranks",
    source="lepikhin2021gshard",
    workload=("training", "inference"),
)
def experts_exist(experts, ep, etp):
    """Expert parallelism needs experts."""
    return (experts > 0) | (ep * etp == 1)


@alternative(of="experts_inside", by="rank_order", label="tp-cp-dp-pp", unit="1", source="narayanan2021")
def experts_inside_stage():
    """1 where the experts of one copy lie on ranks side by side: always inside the stages of a pipeline."""
    return 1.0


@alternative(of="experts_inside", by="rank_order", label="tp-cp-pp-dp", unit="1", source="grattafiori2024llama3")
def experts_inside_sequence(tp, cp, pp, etp, ep):
    """1 where the experts of one copy lie on ranks side by side: not across data-parallel ranks around the pipeline."""
    return xp.where(((tp * cp) % (etp * ep) == 0) | (pp == 1), 1.0, 0.0)


@constraint(
    kind="illegal",
    reason="in the rank order tp-cp-pp-dp etp x ep must divide tp x cp: choose tp-cp-dp-pp",
    source="grattafiori2024llama3",
)
def experts_adjoin(experts_inside):
    """The experts of one copy lie on neighbouring ranks."""
    return experts_inside > 0


@alternative(of="one_distance", by="library", label="nccl", unit="1", source="narayanan2021")
def any_distance():
    """1 where collectives run among ranks at these distances: on switches always."""
    return 1.0


@alternative(of="one_distance", by="library", label="ideal", unit="1", source="narayanan2021")
def same_distance(tp, cp, dp, dp_stride, replica, expert_replica, etp, ep):
    """1 where all ranks with the same weights lie at one distance, as the schedules of ideal fabrics assume."""
    around = (dp > 1) & (dp_stride > tp * cp)
    return xp.where(around & ((cp > 1) | (etp * ep < tp * cp)), 0.0, 1.0)


@constraint(
    kind="illegal",
    reason="on ideal fabrics ranks with the same weights must lie at one distance: choose the rank order tp-cp-dp-pp",
    source="narayanan2021",
)
def replicas_at_one_distance(one_distance):
    """The ranks that hold the same weights have a schedule on the fabric."""
    return one_distance > 0


# ---- pipeline parallelism -------------------------------------------------------------------------------------------


@formula(unit="byte", source="narayanan2021")
def pp_message(tp_message, tp):
    """Activations that one rank hands to the next stage: every tensor-parallel rank sends its part."""
    return tp_message / tp


@formula(unit="s", source="gray2019cudagraphs")
def collective_launch_latency(launch_overhead):
    """Latency of a collective until its first step: that of any kernel, since the host queues them ahead."""
    return launch_overhead


@alternative(of="pp_transfer_time", by="library", label="nccl", unit="s", source="nccl2026tuning")
def pp_library_transfer_time(
    pp_message, pp_tier_ranks, collective_launch_latency, tier_transfer_latency, tier_peer_bandwidth
):
    """Time of one hand-over between neighbouring stages across the outermost tier that the pipeline spans."""
    latency = collective_launch_latency + tier_transfer_latency
    return outermost(latency, pp_tier_ranks) + pp_message / outermost(tier_peer_bandwidth, pp_tier_ranks)


@formula(unit="s", source="narayanan2021")
def pp_gathering_time(tp_gather_time, sequence_parallel, pp):
    """Time in which the receiving ranks gather the parts handed over; with sequence parallelism they keep them."""
    return xp.where(sequence_parallel | (pp <= 1), 0.0, tp_gather_time)


@formula(unit="s", source="narayanan2021")
def pp_handover_time(pp_transfer_time, pp_gathering_time):
    """Time of one hand-over."""
    return pp_transfer_time + pp_gathering_time


@formula(unit="1", source="narayanan2021")
def pp_calls(pp, microbatches, chunks):
    """Hand-overs that one device of the busiest stage sends in one step.

    Activations of every chunk go on and gradients go back; with two stages each is an end of the pipeline.
    """
    ends = xp.where(pp > 2, 0.0, 1.0)
    return xp.where(pp > 1, microbatches * (2 * chunks - ends), 0.0)


@formula(unit="byte", source="narayanan2021")
def pp_bytes(pp_calls, pp_message):
    """Bytes that one device of the busiest stage sends to its neighbours in one step."""
    return pp_calls * pp_message
