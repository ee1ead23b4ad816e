"""The inner axes of the physics, outermost first, and the functions that act on them."""

from functools import reduce
from itertools import product
from operator import add

from perfgrid.catalog.schema import AXIS_LABELS
from perfgrid.engine import xp
from perfgrid.engine.graph.entries import Family, Formula, members
from perfgrid.engine.graph.inner_axes import InnerAxes

PRODUCTS = (  # of a model with weights, those of routed experts apart
    "qkv",
    "query_up",
    "key_up",
    "value_up",
    "attention_output",
    "ffn_up",
    "ffn_down",
    "shared_up",
    "shared_down",
    "router",
    "mtp_projection",
    "logits",
    "mixer_input",
    "mixer_inner",
    "mixer_output",
)
SERVED = tuple(name for name in PRODUCTS if name != "mtp_projection")  # that passes of inference run

LINK_USES = ("steps", "hops", "volume", "chunk_steps", "chunk_hops", "chunk_volume", "messages")

INNER = InnerAxes(
    {
        "pipeline_schedule": AXIS_LABELS["pipeline_schedule"],  # that software may offer
        "vendor": AXIS_LABELS["vendor"],  # of devices
        # batches at which serving is tabulated, from one sequence to as many as fit
        "load": AXIS_LABELS["load"],
        # lengths of requests that stand for their distribution
        "length": tuple(f"length_{i}" for i in range(1, 9)),
        "prompt_part": ("fixed", "read", "bound", "tokens", "work", "launched", "square"),  # of the time of a prompt
        "moment": ("second", "third", "fourth"),  # of the time of a prompt
        # moments of the length of an answer, and of one over it
        "power": ("second", "third", "inverse", "inverse_second", "inverse_third"),
        # of the time of an answer, in seconds: means, standard deviations, leans (see `distributions`)
        "piece": ("each", "once", "varying", "spread_each", "spread_once", "lean_each", "lean_once"),
        # of a time: mean, standard deviation, and the third central moment over the variance
        "statistic": ("mean", "deviation", "lean"),
        "whose": ("own", "some"),  # prompts of an iteration: those of one replica, of any in lockstep
        "further": ("twice", "full"),  # prompts of an iteration: as many again, as many as there is room for
        "arrival": ("idle", "step", "prompts", "crowd"),  # what a request meets that arrives
        # where decoding is evaluated: four nodes before a sliding window is full and four after
        "position": tuple(f"{part}_{i}" for part in ("filling", "full") for i in range(1, 5)),
        "link_family": AXIS_LABELS["link_family"],  # families of scale-up links
        "side": AXIS_LABELS["side"],  # of the shape of a network tier, innermost first
        "reach": ("device", "group", "network"),  # of a link: to a device, among neighbours, through the network
        "node_count": AXIS_LABELS["node_count"],  # nodes that a group touches
        "stage": ("first", "middle", "last"),  # of a pipeline (or chunk), the fullest of those between the ends
        "nccl_algorithm": ("ring", "tree", "in_switch"),
        "protocol": AXIS_LABELS["protocol"],  # of NCCL
        # what the schedule of a collective asks of the links of a tier (see `Schedule`): one of the whole group, or of
        # the tier alone; adjacent axes
        "link_use": (*LINK_USES, *(f"alone_{use}" for use in LINK_USES)),
        "algorithm": (  # of collectives
            "direct",
            "ring",
            "ring_half_hops",
            "line",
            "halving_doubling",
            "recursive_doubling",
            "one_shot",
            "double_binary_tree",
            "in_network",
            "bucket",
            "rotated",
            "rotated_balanced",
            "hamiltonian_rings",
            "swing",
            "rotated_halving_doubling",
            "direct_per_dimension",
            "rotated_direct",
            "hierarchical",
            "hierarchical_pipelined",
            "multi_ring",
            "rail_forward",
            "dimension_order",
            "binomial_tree",
            "scatter_all_gather",
            "pipelined_chain",
            "pipelined_tree",
        ),
        "tier": AXIS_LABELS["tier"],  # network tiers, innermost first
        # among which the area, power and edge of a device are divided
        "component": AXIS_LABELS["component"],
        "layer_kind": ("dense", "experts"),  # kinds of layers of a model, in the order in which tokens pass them
        "mixer_kind": ("attention", "recurrent"),  # what mixes the tokens in layers of hybrid models
        "resource": (
            "arithmetic",
            "registers",
            "shared_memory",
            "l2",
            "hbm",
            "launch",
        ),
        "recompute_mode": ("none", "selective", "full"),  # least first
        # of a training step, at which memory may be fullest (see `moments`)
        "memory_moment": ("forward_end", "loss_gradient", "layer_backward", "gradients_complete", "optimizer_step"),
        "pass": ("prefill", "decode"),  # of inference: the whole prompt, and one step
        "phase": AXIS_LABELS["phase"],
        "mask": ("whole", "window"),  # layers that attend to the whole sequence, and in a sliding window
        # output tiles of a product, from the device's largest: rows x columns, in parts of that tile's
        "tile": ("full", "turned", "half", "tall", "wide", "quarter", "quarter_turned", "eighth"),
        # parts of a model whose weights are stored in a format of their own
        "weight_part": (
            "attention",
            "mixer",
            "indexer",
            "ffn",
            "shared_experts",
            "experts",
            "embedding",
            "head",
            "router",
        ),
        "product": PRODUCTS,
        "expert_product": ("expert_up", "expert_down"),  # products of all routed experts of a rank at once
        # kernels of a pass that multiply matrices
        "kernel": (*SERVED, "expert_up", "expert_down", "attention"),
        "serving_stream": (
            "norm",
            "latent_norm",
            "rotary",
            "latent_keys",
            "quantising",
            "activation",
            "routing",
            "shared_experts",
            "embedding",
            "sampling",
        ),
        "attention_kernel": ("score", "context"),
        "core_product": (  # of the core of a sequence mixer
            "key_products",
            "inverse",
            "keys_solved",
            "values_solved",
            "state_correction",
            "state_update",
            "scores",
            "values",
            "state_output",
            "index_scores",
        ),
        # of the core of a sequence mixer, in order
        "mixer_kernel": ("decays", "index", "choice", "scores", "inverse", "writes", "states", "results"),
        "expert_stream_kernel": ("routing", "permute", "sort", "unpermute", "expert_activation"),
        "stream_kernel": (
            "norm",
            "residual",
            "activation",
            "shared_activation",
            "latent_norm",
            "rotary",
            "softmax",
            "embedding",
            "loss",
            "bias",
            "ffn_bias",
        ),
    }
)
table, join, total = INNER.table, INNER.join, INNER.total
largest, smallest = INNER.largest, INNER.smallest
at, only = INNER.at, INNER.only


def row_of(labels):
    """A function that reads the row of some labels."""

    def row(value):
        return at(value, **labels)

    return row


def rows(
    name: str, of: str, unit: str, source: str, meaning: str, family: Family | None = None, **axes: str
) -> tuple[Formula, ...]:
    """Names for the rows of a quantity along inner axes, as a module lists them in ``FORMULAS``.

    ``axes``: of each axis a label, or the placeholder in ``name`` and ``meaning`` of which its labels are the members.
    """
    placeholders = {p: INNER.labels[axis] for axis, p in axes.items() if p not in INNER.labels[axis]}
    found = []
    for labels in product(*placeholders.values()):
        swap = dict(zip(placeholders, labels, strict=True))
        read = row_of({axis: swap.get(p, p) for axis, p in axes.items()})
        texts = [reduce(lambda text, pair: text.replace(*pair), swap.items(), text) for text in (name, meaning)]
        found += members(Formula(texts[0], read, (of,), unit, source, texts[1]), family)
    return tuple(found)


# ---- layers of several kinds ----------------------------------------------------------------------------------------

KIND_AXES = ("layer_kind", "mixer_kind")  # a layer is of one kind along each


def varying_kinds(*values):
    """The axes of kinds of layers along which any of the values varies: none where layers are all alike."""
    return tuple(axis for axis in KIND_AXES if any(INNER.extent(value, axis) > 1 for value in values))


def of_kinds(layers, value):
    """Sum over the kinds of layers: how many there are of each, times the value of one.

    Term by term, not by a reduction: on a grid this is a multiplication and an addition.
    """
    axes = varying_kinds(layers, value)
    kinds = (dict(zip(axes, labels, strict=True)) for labels in product(*(INNER.labels[axis] for axis in axes)))
    return reduce(add, (at(layers, **kind) * at(value, **kind) for kind in kinds))


def mean_of_kinds(layers, value):
    """Mean of the value over all layers: that of the mean layer."""
    return of_kinds(layers, value) / of_kinds(layers, 1.0) if varying_kinds(layers, value) else value


def largest_of_kinds(layers, value):
    """Largest value of the kinds of which there are layers; 0 where there are none."""
    axes = varying_kinds(layers, value)
    return reduce(largest, axes, xp.where(layers > 0, value, 0.0)) if axes else value
