"""Parallel groups: where their ranks lie on the fabric; and what pipeline stages hand over.

The groups are a family: ``tp`` innermost, then ``dp``, then ``pp`` (the rank order of Megatron-LM). ``shard`` is the
part of ``dp`` over which the optimizer state is sharded, ``vocab`` the ranks among which the vocabulary is split (those
of ``tp``), ``tied`` the two stages that hold a shared embedding table.
"""

from perfgrid.engine import xp
from perfgrid.engine.registry import alternative, constraint, formula

from .axes import at, table
from .collectives import GATHERING, PLACED

# ---- equations ------------------------------------------------------------------------------------------------------


def ranks_in_domain(size, stride, domain):
    """Ranks of a group of this size and stride inside one domain.

    A group that does not fill whole domains takes a power-of-two part of as many as it needs (64 of 72, say).
    """
    most = xp.minimum(xp.maximum(xp.floor(domain / stride), 1.0), size)
    spread = size / most
    domains = xp.where(size % most == 0, spread, 2.0 ** xp.ceil(xp.log2(spread)))
    return size / domains


# ---- placement ------------------------------------------------------------------------------------------------------


@formula(unit="1", source="narayanan2021")
def tp_stride():
    """Distance between neighbouring tensor-parallel ranks."""
    return 1.0


@formula(unit="1", source="narayanan2021")
def dp_stride(tp):
    """Distance between neighbouring data-parallel ranks."""
    return tp


@formula(unit="1", source="narayanan2021")
def pp_stride(tp, dp):
    """Distance between neighbouring pipeline stages."""
    return tp * dp


@formula(unit="1", source="rajbhandari2020zero")
def shard(dp, zero):
    """Ranks over which the optimizer state is sharded: the data-parallel ones from ZeRO stage 1 on."""
    return xp.where(zero >= 1, dp, 1.0)


@formula(unit="1", source="rajbhandari2020zero")
def shard_stride(tp):
    """Distance between neighbouring ranks of a sharding group."""
    return tp


@formula(unit="1", source="shoeybi2019megatron")
def vocab(tp):
    """Ranks among which the vocabulary is split: the tensor-parallel ones."""
    return tp


@formula(unit="1", source="shoeybi2019megatron")
def vocab_stride():
    """Distance between neighbouring ranks of a split vocabulary."""
    return 1.0


@formula(unit="1", source="narayanan2021")
def tied(pp, tied_embeddings):
    """Stages that hold a copy of a shared embedding table: the first and the last."""
    return xp.where(tied_embeddings & (pp > 1), 2.0, 1.0)


@formula(unit="1", source="narayanan2021")
def tied_stride(tp, dp, pp):
    """Distance between the first and the last stage."""
    return tp * dp * xp.maximum(pp - 1, 1.0)


@formula(unit="1", source="narayanan2021", family=PLACED)
def GROUP_tier_ranks(GROUP, GROUP_stride, tier_size):
    """Ranks of the GROUP group at each tier: inside one scale-up domain, and domains; by tier."""
    inside = ranks_in_domain(GROUP, GROUP_stride, at(tier_size, tier="scale_up"))
    return table("tier", scale_up=inside, scale_out=GROUP / inside)


@alternative(of="GROUP_fills", by="library", label="nccl", unit="1", source="narayanan2021", family=GATHERING)
def GROUP_fills_domains(GROUP_tier_ranks):
    """1 where the GROUP group has a whole number of ranks in each scale-up domain that it touches."""
    inside = at(GROUP_tier_ranks, tier="scale_up")
    return xp.where(inside == xp.round(inside), 1.0, 0.0)


@constraint(
    kind="illegal",
    reason="the GROUP ranks do not fill the domains of the fabric evenly",
    source="narayanan2021",
    family={"GROUP": ("tp", "dp")},
)
def GROUP_fills_tiers(GROUP_fills):
    """The GROUP group fills whole domains of every tier that it touches."""
    return GROUP_fills > 0


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


@constraint(kind="illegal", reason="tp x pp x dp is not the number of devices", source="narayanan2021")
def layout_fills_cluster(tp, pp, dp, devices):
    """The parallel ranks are exactly the devices of the cluster."""
    return tp * pp * dp == devices


# ---- pipeline parallelism -------------------------------------------------------------------------------------------


@formula(unit="byte", source="narayanan2021")
def pp_message(tp_message, tp):
    """Activations that one rank hands to the next stage: every tensor-parallel rank sends its part."""
    return tp_message / tp


@alternative(of="pp_transfer_time", by="library", label="nccl", unit="s", source="narayanan2021")
def pp_library_transfer_time(pp_message, pp_tier_ranks, tier_latency, tier_peer_bandwidth):
    """Time of one hand-over between neighbouring stages across the outermost tier that the pipeline spans."""
    by_tier = tier_latency + pp_message / tier_peer_bandwidth
    return xp.where(
        at(pp_tier_ranks, tier="scale_out") > 1, at(by_tier, tier="scale_out"), at(by_tier, tier="scale_up")
    )


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
