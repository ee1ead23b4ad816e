"""Routed experts of inference: which of them the tokens of a pass visit, and their products.

Routing is taken as uniformly random: of E experts n tokens visit E·(1 - (1 - k/E)^n), and the busiest of the ranks has
more than the mean. The weights of visited experts are read once.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import constraint, formula, synonyms
from perfgrid.formulas.axes import at, total

FORMULAS = synonyms(
    {
        "expert_columns": (
            *("grouped_outputs", "1", "lepikhin2021gshard"),
            "Columns of the products of one expert on one rank, by expert_product.",
        ),
        "expert_depth": (
            *("grouped_inputs", "1", "lepikhin2021gshard"),
            "Depth of the products of one expert on one rank, by expert_product.",
        ),
    }
)


@formula(unit="byte", source="lin2023awq")
def expert_weight_size(part_weight_size):
    """Bytes of one weight of an expert in memory."""
    return at(part_weight_size, weight_part="experts")


def touched_experts(experts, share, tokens, skew=0.0):
    """Experts that at least one of the tokens visits: E·(1 - (1 - k/E)^n), with share = k/E, under uniform routing.

    Where the popularity of experts has a coefficient of variation v (a gamma distribution) each is left out with the
    probability (1 + v²·x)^(-1/v²), x = -n·ln(1 - k/E), which is e^-x for v = 0.
    """
    visits = -tokens * xp.log1p(-xp.minimum(share, 1 - 1e-6))
    spread = xp.maximum(skew**2, 1e-6)
    return experts * (1 - xp.exp(-xp.where(skew > 1e-3, xp.log1p(spread * visits) / spread, visits)))


@formula(unit="1", source="lepikhin2021gshard")
def expert_tokens(pass_tokens, tp, ep, etp, lockstep_fill):
    """Tokens that the ranks of one copy of all experts compute together in a pass, by pass.

    A copy lies on ep·etp ranks, of which tp at a time hold the same tokens.
    """
    return pass_tokens * lockstep_fill * xp.maximum(ep * etp / tp, 1.0)


@formula(unit="1", source="fedus2022switch")
def routed_share(experts, experts_per_token):
    """Part of the experts that one token visits; 1 without experts."""
    return xp.where(experts > 0, experts_per_token / xp.maximum(experts, 1.0), 1.0)


@constraint(reason="there are more expert-parallel ranks than experts", source="lepikhin2021gshard")
def ranks_have_experts(experts, ep):
    """Every expert-parallel rank has an expert."""
    return (experts == 0) | (ep <= experts)


@formula(unit="1", source="raab1998balls")
def busiest_load(expert_tokens, experts_per_token, experts, ep, router_skew):
    """Load of the busiest expert-parallel rank over the mean, by pass: 1 + sqrt(2·ln ep)·sqrt(1/m + v²·ep/E).

    The largest of ep numbers of mean m and variance m lies near m + sqrt(2·m·ln ep) (m large), at most all of them. A
    rank has E/ep experts, whose popularity varies by v each.
    """
    mean = xp.maximum(expert_tokens * experts_per_token / ep, 1e-9)
    popularity = router_skew**2 * ep / xp.maximum(experts, 1.0)
    excess = xp.sqrt(2 * xp.log(xp.maximum(ep, 2.0)) * (1 / mean + popularity))
    return xp.where(ep > 1, xp.minimum(1 + excess, ep), 1.0)


@formula(unit="1", source="fedus2022switch")
def expert_batch(experts, ep, routed_share, expert_tokens, busiest_load, router_skew):
    """Experts of the busiest rank that have tokens in a pass, by pass: their weights are read."""
    own = xp.maximum(experts, 1.0) / ep
    return xp.maximum(touched_experts(own, routed_share, expert_tokens * busiest_load, router_skew), 1.0)


@formula(unit="1", source="fedus2022switch")
def expert_rows(experts_per_token, ep, expert_tokens, busiest_load, expert_batch):
    """Tokens of each expert that has any, on the busiest rank, by pass."""
    pairs = expert_tokens * busiest_load * xp.maximum(experts_per_token, 1.0) / ep
    return xp.maximum(pairs / expert_batch, 1.0)


@formula(unit="FLOP/s", source="luo2024hopper, frantar2024marlin")
def expert_matrix_rate(
    matrix_rate,
    library_efficiency,
    expert_efficiency,
    expert_operand_size,
    expert_weight_size,
    synchronous_conversion,
    synchronous_matrix_share,
):
    """Rate that large products of experts reach: one kernel for several products gathers their rows on the way.

    Kernels that convert weights of fewer bits in registers may use the matrix instructions that a warp waits for.
    """
    converts = xp.where(synchronous_conversion, expert_weight_size < expert_operand_size, False)
    share = xp.where(converts, synchronous_matrix_share, 1.0)
    return matrix_rate * library_efficiency * expert_efficiency * share


@formula(unit="s", source="fedus2022switch")
def experts_time(expert_product_time, moe_layers):
    """Time of all products with routed experts in one pass through all layers, by resource and pass."""
    return moe_layers * total(expert_product_time, "expert_product")
