"""The inner axes of the physics, outermost first, and the verbs that formulas use on them."""

from perfgrid.engine.graph.inner_axes import InnerAxes
from perfgrid.formulas.collectives.nccl_equations import ALGORITHMS as LIBRARY_ALGORITHMS
from perfgrid.formulas.collectives.nccl_equations import PROTOCOLS
from perfgrid.formulas.collectives.schedules.tables import ALGORITHMS, MEMBERS

INNER = InnerAxes(
    {
        "vendor": ("nvidia", "amd", "google", "intel"),  # of devices
        # batches at which serving is tabulated, from one sequence to as many as fit
        "load": tuple(f"node_{i}" for i in range(1, 17)),
        # where decoding is evaluated: four nodes before a sliding window is full and four after
        "position": tuple(f"{part}_{i}" for part in ("filling", "full") for i in range(1, 5)),
        "link_family": ("nvlink", "infinity_fabric", "ici", "pcie", "ethernet"),  # families of scale-up links
        "side": ("first", "second", "third", "fourth"),  # of the shape of a network tier, innermost first
        # the shape of a tier, all that its schedules depend on
        "trait": (
            "kind",
            "first",
            "second",
            "third",
            "fourth",
            "first_wraps",
            "second_wraps",
            "third_wraps",
            "fourth_wraps",
            "oversubscription",
            "upper_oversubscription",
            "in_network",
            "global_links",
        ),
        "node_count": ("one", "two", "more"),  # nodes that a group touches
        "library_algorithm": tuple(LIBRARY_ALGORITHMS),  # of a communication library
        "protocol": PROTOCOLS,  # of a communication library
        # what a schedule asks of a tier: as part of one schedule of the whole group, and alone on its tier
        "demand": (*MEMBERS, "how", "offered", *(f"tier_{member}" for member in MEMBERS), "tier_offered"),
        "algorithm": ALGORITHMS,  # of collectives
        "span": ("group", "scale_up", "scale_out"),  # one schedule for the whole group, or a tier on its own
        "tier": ("scale_up", "scale_out"),  # network tiers, innermost first
        # among which the area, power and edge of a device are divided
        "component": (
            "matrix",
            "vector",
            "registers",
            "shared_memory",
            "l2",
            "memory",
            "scale_up",
            "scale_out",
            "rest",
        ),
        "resource": ("arithmetic", "registers", "shared_memory", "l2", "hbm", "launch"),  # what a kernel waits for
        "recompute_mode": ("none", "selective", "full"),  # least first
        "pass": ("prefill", "decode"),  # of inference: the whole prompt, and one step
        "phase": ("forward", "input_gradient", "weight_gradient"),
        "mask": ("whole", "window"),  # layers that attend to the whole sequence, and in a sliding window
        # output tiles of a product, from the device's largest: rows x columns, in parts of that tile's
        "tile": ("full", "turned", "half", "tall", "wide", "quarter", "quarter_turned", "eighth"),
        # products of inference, latent attention and shared experts among them
        "product": (
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
            "logits",
        ),
        "expert_product": ("up", "down"),  # products of routed experts
        "serving_stream": ("norm", "rotary", "activation", "routing", "embedding", "sampling"),
        "gemm_kernel": (
            "qkv",
            "query_up",
            "key_value_up",
            "attention_output",
            "ffn_up",
            "ffn_down",
            "router",
            "shared_up",
            "shared_down",
            "mtp_projection",
            "logits",
        ),
        "attention_kernel": ("score", "context"),
        "grouped_gemm_kernel": ("expert_up", "expert_down"),  # products of all experts of a rank at once
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
        ),
    }
)
table, join, total = INNER.table, INNER.join, INNER.total
largest, smallest = INNER.largest, INNER.smallest
at, only = INNER.at, INNER.only
