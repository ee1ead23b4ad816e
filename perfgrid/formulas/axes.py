"""The inner axes of the physics, outermost first, and the verbs that formulas use on them."""

from perfgrid.engine.inner import InnerAxes

INNER = InnerAxes(
    {
        "link": ("nvlink", "infinity_fabric", "ici", "pcie"),  # families of scale-up links
        "tier": ("scale_up", "scale_out"),  # network tiers, innermost first
        "resource": ("arithmetic", "hbm", "l2", "launch"),  # what a kernel's time is spent waiting for
        "phase": ("forward", "input_gradient", "weight_gradient"),
        "gemm_kernel": ("qkv", "attention_output", "ffn_up", "ffn_down", "logits"),
        "attention_kernel": ("score", "context"),
        "stream_kernel": ("norm", "residual", "activation", "rotary", "softmax", "embedding", "loss", "bias"),
    }
)
table, join, total, largest = INNER.table, INNER.join, INNER.total, INNER.largest
at, only = INNER.at, INNER.only
