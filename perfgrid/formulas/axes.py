"""The inner axes of the physics, outermost first, and the verbs that formulas use on them."""

from perfgrid.engine.inner import InnerAxes

INNER = InnerAxes(
    {
        "link": ("nvlink", "infinity_fabric", "ici", "pcie", "ethernet"),  # families of scale-up links
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
