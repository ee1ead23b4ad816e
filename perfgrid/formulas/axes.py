"""The inner axes of the physics, outermost first, and the verbs that formulas use on them."""

from perfgrid.engine.inner import InnerAxes

from .network.tables import ALGORITHMS, MEMBERS

INNER = InnerAxes(
    {
        "link": ("nvlink", "infinity_fabric", "ici", "pcie", "ethernet"),  # families of scale-up links
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
        # what a schedule asks of a tier: as part of one schedule of the whole group, and alone on its tier
        "demand": (*MEMBERS, "how", "offered", *(f"tier_{member}" for member in MEMBERS), "tier_offered"),
        "algorithm": ALGORITHMS,  # of collectives
        "span": ("group", "scale_up", "scale_out"),  # one schedule for the whole group, or a tier on its own
        "tier": ("scale_up", "scale_out"),  # network tiers, innermost first
        "resource": ("arithmetic", "registers", "shared_memory", "l2", "hbm", "launch"),  # what a kernel waits for
        "phase": ("forward", "input_gradient", "weight_gradient"),
        "mask": ("whole", "window"),  # layers that attend to the whole sequence, and in a sliding window
        # output tiles of a product, from the device's largest: rows x columns, in parts of that tile's
        "tile": ("full", "turned", "half", "tall", "wide", "quarter", "quarter_turned", "eighth"),
        "gemm_kernel": ("qkv", "attention_output", "ffn_up", "ffn_down", "logits"),
        "attention_kernel": ("score", "context"),
        "stream_kernel": ("norm", "residual", "activation", "rotary", "softmax", "embedding", "loss", "bias"),
    }
)
table, join, total = INNER.table, INNER.join, INNER.total
largest, smallest = INNER.largest, INNER.smallest
at, only = INNER.at, INNER.only
