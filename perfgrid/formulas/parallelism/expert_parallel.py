"""Expert parallelism: what its ranks exchange for a layer, how that spreads over the fabric, and what stays exposed.

Every rank sends its tokens to the ranks of their experts (dispatch) and gets the results back (combine), forward and,
with gradients, backward: four exchanges per layer and microbatch. For k experts per token on e ranks each sends up to
k·(e - 1)/e copies of its tokens, h elements each. How is the software's choice (``token_dispatch``):

* ``all_to_all``: a copy for every choice goes straight to its rank (Lepikhin 2020).
* ``two_phase``: copies first change ranks inside a node, then leave it in few large messages through the rank that has
  the same place in all nodes (Hwang 2023).
* ``deduplicated``: one copy per node leaves, and is spread to the ranks there that need it, one copy per rank, while
  others still arrive (DeepEP). The expected number of nodes or ranks takes the place of k.

Not modelled: what the router sends beside the tokens (counts, probabilities, terms of a balancing loss: 4 bytes a token
or expert).
"""

from math import comb

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import at, of_kinds, only, table, total
from perfgrid.formulas.collectives.exchange import ALL_TO_ALL, DEDUPLICATED, TWO_PHASE
from perfgrid.formulas.collectives.placement import gathered_share

from .tensor_parallel import exposed_time, with_cores_taken

EXCHANGES = {"EXCHANGE": ("dispatch", "combine")}


# ---- equations ------------------------------------------------------------------------------------------------------


def missed(experts, own, chosen):
    """Probability that none of the k experts that a token chooses is one of ``own``: C(E - own, k)/C(E, k)."""
    return comb(max(experts - own, 0), chosen) / max(comb(experts, chosen), 1)


def places_reached(places, experts, chosen, groups=1, chosen_groups=1):
    """Expected number of places (ranks, nodes) with equally many experts that the experts of one token lie in.

    n·[1 - C(E - E/n, k)/C(E, k)] for n places, E experts, k chosen, all equally likely. With groups the token chooses
    ``chosen_groups`` of them, then its experts among theirs. A place lies in one group or holds several, of which as
    many are chosen as drawing without replacement yields. DeepSeek-V3 (8 of 256 experts in 4 of 8 groups, one on each
    node; section 2.1.2) reaches 3.63 nodes.
    """
    within, held = experts * chosen_groups // groups, round(groups / places)
    if held <= 1:
        return places * chosen_groups / groups * (1 - missed(within, round(experts / places), chosen))
    met = 0.0
    for some in range(1, min(held, chosen_groups) + 1):
        likely = comb(held, some) * comb(groups - held, chosen_groups - some) / comb(groups, chosen_groups)
        met += likely * (1 - missed(within, some * experts // groups, chosen))
    return places * met


def left_of_exchange(waiting, hidden_behind, core_share):
    """Part of an exchange that is waited for beside kernels, with what they lose of their cores."""
    left = with_cores_taken(exposed_time(waiting, hidden_behind), waiting, core_share)
    return left / xp.where(waiting > 0, waiting, 1e10)


def lone_kernels(layer_busy_time, shared_hiding_time, kind_has_experts):
    """Kernel time of one layer and a microbatch, without kernels that run beside an exchange of their own."""
    return total(layer_busy_time, "resource") - kind_has_experts * total(shared_hiding_time, "phase")


def slowed_by_cores(layer_busy_time, core_share):
    """Time by which kernels of one layer slow down where an exchange has cores of its own throughout.

    x/(1 - x) of their time for the share x of the cores. Kernels bound by device memory or launches are not slowed.
    """
    on_cores = total(layer_busy_time * (1 - only("resource", "hbm", "launch")), "resource")
    return core_share / xp.maximum(1 - core_share, 0.01) * on_cores


# ---- what one rank sends --------------------------------------------------------------------------------------------


@formula(unit="1", source="deepseek2024v3", host=True, inner=("tier",))
def ep_places_reached(experts, experts_per_token, groups, groups_per_token, ep_tier_ranks):
    """Expected ranks (scale_up) and domains (scale_out) in which the experts of one token lie, by tier."""
    inside, domains = ep_tier_ranks
    routing = (int(max(experts, 1)), int(max(experts_per_token, 1)))
    limits = (int(groups), int(groups_per_token)) if groups > 0 and groups_per_token > 0 else (1, 1)
    return [places_reached(max(round(n), 1), *routing, *limits) for n in (inside * domains, domains)]


@formula(unit="1", source="nvidia2026moe")
def ep_direct(token_dispatch):
    """1 where copies arrive in the order of the ranks that sent them, 0 where the exchange delivers them by expert."""
    return xp.where(token_dispatch == DEDUPLICATED, 0.0, 1.0)


@formula(unit="1", source="deepseek2025deepep")
def ep_copies(token_dispatch, experts_per_token, ep, ep_tier_ranks, ep_places_reached):
    """Copies of one token that a rank sends on each tier, by tier: those for its own rank or domain use no link.

    k experts on r ranks in each of n domains. ``all_to_all``: k·(r - 1)/(r·n) inside the domain, k·(n - 1)/n out of it;
    ``two_phase``: k·(r - 1)/r and k·(n - 1)/n; ``deduplicated``: the expected ranks and domains (`places_reached`)
    instead of k.
    """
    inside, domains = at(ep_tier_ranks, tier="scale_up"), at(ep_tier_ranks, tier="scale_out")
    beside, beyond = (inside - 1) / inside, (domains - 1) / domains
    k, reached = experts_per_token, ep_places_reached
    direct = table("tier", scale_up=k * (inside - 1) / ep, scale_out=k * beyond)
    two_phase = table("tier", scale_up=k * beside, scale_out=k * beyond)
    once = reached * table("tier", scale_up=beside, scale_out=beyond)
    return xp.where(token_dispatch == DEDUPLICATED, once, xp.where(token_dispatch == TWO_PHASE, two_phase, direct))


@formula(unit="1", source="deepseek2025deepep")
def ep_messages(token_dispatch, ep, ep_tier_ranks):
    """Messages that one rank posts for one exchange, by tier: to every rank, or to one in each domain."""
    inside, domains = at(ep_tier_ranks, tier="scale_up"), at(ep_tier_ranks, tier="scale_out")
    outside = xp.where(token_dispatch == ALL_TO_ALL, ep - inside, domains - 1)
    return table("tier", scale_up=inside - 1, scale_out=outside)


@formula(unit="byte", source="deepseek2025deepep", family=EXCHANGES)
def ep_EXCHANGE_tier_bytes(ep_copies, sharded_tokens, expert_load, expert_width, EXCHANGE_size, activation_size):
    """Bytes that the busiest rank moves in one EXCHANGE, by tier: copies·tokens·load·h·(bytes per element).

    ``expert_load`` is the busiest rank's share over the mean. Elements are those of activations unless the software
    states another size for the EXCHANGE.
    """
    size = xp.where(EXCHANGE_size > 0, EXCHANGE_size, activation_size)
    return ep_copies * sharded_tokens * expert_load * expert_width * size


# ---- time -----------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="liu2025folding")
def etp_message(rank_expert_rows, expert_width, activation_size):
    """Rows of one microbatch that ranks with parts of the same experts gather before and reduce-scatter after them."""
    return rank_expert_rows * expert_width * activation_size


@formula(unit="s", source="nvidia2026moe")
def shared_hiding_time(gemm_time, stream_time, shared_expert_overlap, shared_experts):
    """Time of the shared experts of one layer beside which tokens may be exchanged, by phase."""
    products = total(gemm_time * only("product", "shared_up", "shared_down"), "product")
    time = total(products + at(stream_time, stream_kernel="shared_activation"), "resource")
    return xp.where(shared_experts > 0, shared_expert_overlap, 0.0) * time


@formula(unit="s", source="nvidia2026moe")
def layer_forward_expert_wait(expert_exchange_time, shared_hiding_time, kind_has_experts):
    """Exchange of one layer's forward pass that its shared experts do not hide."""
    return kind_has_experts * exposed_time(expert_exchange_time, at(shared_hiding_time, phase="forward"))


@formula(unit="s", source="nvidia2026moe")
def layer_backward_expert_wait(
    expert_exchange_time, shared_hiding_time, kind_has_experts, layer_recomputed, layer_forward_expert_wait
):
    """Exchange of one layer's backward pass that its shared experts do not hide, recomputed passes included."""
    backward = total(shared_hiding_time, "phase") - at(shared_hiding_time, phase="forward")
    return (
        kind_has_experts * exposed_time(expert_exchange_time, backward) + layer_recomputed * layer_forward_expert_wait
    )


@formula(unit="1", source="deepseek2024v3")
def exposed_expert_share(
    layer_forward_expert_wait,
    layer_backward_expert_wait,
    layer_busy_time,
    shared_hiding_time,
    kind_has_experts,
    ep_overlap,
    paired_ep_overlap,
    ep_overlap_by_schedule,
    communication_core_share,
    dedicated_cores,
):
    """Part of the exchange that stays exposed where the kernels of one microbatch hide that of another.

    By software (``ep_overlap``) or by schedule: DualPipe runs forward and backward passes in pairs,
    both exchanges beside both kernels, which lose cores while an exchange runs, or for as long as they run if cores are
    dedicated to it.
    """
    hiding = xp.maximum(ep_overlap, paired_ep_overlap * ep_overlap_by_schedule)  # part of the kernels
    waiting = layer_forward_expert_wait + layer_backward_expert_wait
    kernels = lone_kernels(layer_busy_time, shared_hiding_time, kind_has_experts)
    slower = slowed_by_cores(layer_busy_time, communication_core_share)
    slower = xp.where(dedicated_cores, ep_overlap_by_schedule, 0.0) * slower
    set_aside = exposed_time(waiting, hiding * (kernels + slower)) + slower
    at_times = left_of_exchange(waiting, hiding * kernels, communication_core_share)
    return xp.where(slower > 0, set_aside / xp.where(waiting > 0, waiting, 1e10), at_times)


@formula(unit="s", source="deepseek2024v3")
def unpaired_ep_time(
    layer_forward_expert_wait,
    layer_backward_expert_wait,
    layer_busy_time,
    shared_hiding_time,
    kind_has_experts,
    ep_overlap,
    communication_core_share,
    exposed_expert_share,
):
    """Exchange of one layer that a pass without a partner waits for beyond a paired one.

    The mean of a forward and a backward pass. Such a pass hides its exchange only as far as the software does by
    itself.
    """
    waiting = layer_forward_expert_wait + layer_backward_expert_wait
    kernels = lone_kernels(layer_busy_time, shared_hiding_time, kind_has_experts)
    alone = left_of_exchange(waiting, ep_overlap * kernels, communication_core_share)
    return waiting * xp.maximum(alone - exposed_expert_share, 0.0) / 2


@formula(unit="s", source="deepseek2024v3", family={"DIRECTION": ("forward", "backward")})
def layer_DIRECTION_exposed_ep_time(layer_DIRECTION_expert_wait, exposed_expert_share):
    """Exposed exchange of tokens with their experts in the DIRECTION pass of one layer."""
    return layer_DIRECTION_expert_wait * exposed_expert_share


# ---- volume ---------------------------------------------------------------------------------------------------------


@formula(unit="1", source="lepikhin2021gshard")
def ep_passes(
    microbatches, slowest_stage_kind_layers, slowest_stage_heads, mtp_kind_layers, kind_has_experts, layer_recomputed
):
    """Passes through layers with experts of one device of the slowest stage in one step."""
    layers = slowest_stage_kind_layers + slowest_stage_heads * mtp_kind_layers
    return microbatches * of_kinds(layers, kind_has_experts) * (2 + layer_recomputed)


@formula(unit="byte", source="lepikhin2021gshard")
def ep_bytes(ep_passes, ep_dispatch_tier_bytes, ep_combine_tier_bytes):
    """Bytes that one device of the slowest stage sends to expert-parallel ranks in one step, on all tiers together."""
    return ep_passes * total(ep_dispatch_tier_bytes + ep_combine_tier_bytes, "tier")


@formula(unit="byte", source="liu2025folding")
def layer_etp_bytes(etp, etp_message, kind_has_experts, layer_recomputed):
    """Bytes that one device sends for one layer and a microbatch to the ranks which share its experts.

    (n - 1)/n of the rows for the gather before the experts and for the reduce-scatter after them, in every pass.
    """
    return 2 * (2 + layer_recomputed) * kind_has_experts * gathered_share(etp) * etp_message


@formula(unit="1", source="lepikhin2021gshard")
def ep_calls(ep, ep_passes):
    """Exchanges of one device of the slowest stage with expert-parallel ranks in one step."""
    return xp.where(ep > 1, 2 * ep_passes, 0.0)
