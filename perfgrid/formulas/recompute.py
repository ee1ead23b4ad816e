"""Recomputation of activations in the backward pass: none, selective (attention core) or full (whole layers).

Only two counts depend on the mode; every time, call and FLOP that is repeated is a product with one of them.
"""

from perfgrid.engine.registry import alternative


def _mode(of, label):
    return alternative(of=of, by="recompute", label=label, unit="1", source="korthikanti2022")


@_mode("layer_recomputed", "none")
def none_layer_recomputed():
    """Repetitions of a layer outside its attention core, without recomputation."""
    return 0.0


@_mode("layer_recomputed", "selective")
def selective_layer_recomputed():
    """Repetitions of a layer outside its attention core, with selective recomputation."""
    return 0.0


@_mode("layer_recomputed", "full")
def full_layer_recomputed():
    """Repetitions of a layer outside its attention core, with full recomputation."""
    return 1.0


@_mode("core_recomputed", "none")
def none_core_recomputed():
    """Repetitions of the unfused attention core, without recomputation."""
    return 0.0


@_mode("core_recomputed", "selective")
def selective_core_recomputed():
    """Repetitions of the unfused attention core, with selective recomputation."""
    return 1.0


@_mode("core_recomputed", "full")
def full_core_recomputed():
    """Repetitions of the unfused attention core, with full recomputation."""
    return 1.0
