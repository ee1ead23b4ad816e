"""Kinds of layers: which layers of a model have a dense feed-forward block, which have experts, and where they stand.

Models with experts may begin with a few dense layers (DeepSeek-V3 with three), and after these only every n-th layer
may have experts (Llama 4 Maverick every second one). What a stage of a pipeline holds is a run of layers; how many of
each kind it has follows from those before its begin and before its end (`run_of_layers`), along ``layer_kind``.

The label ``layer_pattern`` is set for a whole study: ``dense_first`` where any of its models has layers of both kinds,
otherwise ``uniform``. A uniform model has one kind of layers, with experts everywhere or nowhere, and its quantities do
not vary along ``layer_kind``: it costs nothing more.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.axes import at, several_kinds, table

# ---- equations ------------------------------------------------------------------------------------------------------


def layers_with_experts(position, leading_layers, expert_layer_step):
    """Layers with experts among the first ``position`` ones: every n-th after the leading dense ones."""
    behind = xp.maximum(position - leading_layers, 0.0)
    return xp.where(expert_layer_step > 1, xp.floor(behind / expert_layer_step), behind)


def run_of_layers(begin, count, kind_layers, leading_layers, expert_layer_step):
    """Layers of each kind in a run of ``count`` layers from ``begin`` on, by layer_kind.

    A run of a model whose layers are all alike is of this kind throughout.
    """
    if not several_kinds(kind_layers):
        return count
    before, after = (layers_with_experts(p, leading_layers, expert_layer_step) for p in (begin, begin + count))
    return table("layer_kind", dense=count - (after - before), experts=after - before)


def last_layers(count, layers, kind_layers, leading_layers, expert_layer_step):
    """Layers of each kind among the last ``count`` ones of the model."""
    return run_of_layers(layers - count, count, kind_layers, leading_layers, expert_layer_step)


# ---- where the layers of each kind stand ----------------------------------------------------------------------------


def _by_pattern(of, label):
    return alternative(of=of, by="layer_pattern", label=label, unit="1", source="dai2024deepseekmoe")


@_by_pattern("kind_layers", "uniform")
def uniform_kind_layers(layers):
    """Layers of each kind, where all layers are alike: all."""
    return layers


@_by_pattern("last_kind", "uniform")
def uniform_last_kind():
    """1 for the kind of the last layer, where all layers are alike."""
    return 1.0


@_by_pattern("leading_layers", "uniform")
def uniform_leading_layers():
    """Dense layers before the pattern with experts begins, where all layers are alike: 0."""
    return 0.0


@_by_pattern("leading_layers", "dense_first")
def dense_first_leading_layers(layers, dense_layers, experts, expert_layer_step):
    """Dense layers before the pattern with experts begins: all of a model without experts.

    Where every n-th layer has experts, n - 1 dense ones stand before each of these.
    """
    between = (expert_layer_step - 1) * (layers - dense_layers)
    return xp.where(experts > 0, xp.minimum(xp.maximum(dense_layers - between, 0.0), layers), layers)


@_by_pattern("kind_layers", "dense_first")
def dense_first_kind_layers(leading_layers, layers, expert_layer_step):
    """Layers of each kind, where dense layers come first; by layer_kind."""
    experts = layers_with_experts(layers, leading_layers, expert_layer_step)
    return table("layer_kind", dense=layers - experts, experts=experts)


@constraint(reason="the dense layers are not those before and between layers with experts", source="dai2024deepseekmoe")
def dense_layers_fit_the_step(experts, layers, dense_layers, leading_layers, expert_layer_step):
    """Of the layers after the leading dense ones every n-th has experts, and no others are dense."""
    found = layers_with_experts(layers, leading_layers, expert_layer_step)
    return (experts == 0) | (dense_layers >= layers) | (found == layers - dense_layers)


@_by_pattern("last_kind", "dense_first")
def dense_first_last_kind(leading_layers, layers, expert_layer_step):
    """1 for the kind of the last layer, where dense layers come first; by layer_kind."""
    before, after = (layers_with_experts(p, leading_layers, expert_layer_step) for p in (layers - 1, layers))
    return table("layer_kind", dense=1 - (after - before), experts=after - before)


@formula(unit="1", source="deepseek2024v3")
def mtp_kind_layers(mtp_layers, last_kind):
    """Layers of modules that predict further tokens, which are of the kind of the model's last layer, by layer_kind."""
    return mtp_layers * last_kind


# ---- what a layer of each kind consists of --------------------------------------------------------------------------


@_by_pattern("kind_has_experts", "uniform")
def uniform_kind_has_experts(layers, dense_layers, experts, ffn_free_layers):
    """Feed-forward parts with experts in a layer, where all layers are alike: 1, or the part that has any."""
    return xp.where((experts > 0) & (dense_layers < layers), 1.0 - ffn_free_layers / layers, 0.0)


@_by_pattern("kind_is_dense", "uniform")
def uniform_kind_is_dense(layers, dense_layers, experts, ffn_free_layers):
    """Dense feed-forward parts in a layer, where all layers are alike: 1, or the part that has any."""
    return xp.where((experts > 0) & (dense_layers < layers), 0.0, 1.0 - ffn_free_layers / layers)


@_by_pattern("kind_has_experts", "dense_first")
def dense_first_kind_has_experts(experts, kind_layers, ffn_free_layers):
    """Feed-forward parts with experts in a layer, where dense layers come first; by layer_kind."""
    with_ffn = 1.0 - ffn_free_layers / xp.maximum(at(kind_layers, layer_kind="experts"), 1.0)
    return table("layer_kind", dense=0.0, experts=xp.where(experts > 0, with_ffn, 0.0))


@_by_pattern("kind_is_dense", "dense_first")
def dense_first_kind_is_dense(experts, layers, ffn_free_layers):
    """Dense feed-forward parts in a layer, where dense layers come first; by layer_kind."""
    return table("layer_kind", dense=xp.where(experts > 0, 1.0, 1.0 - ffn_free_layers / layers), experts=0.0)


@formula(unit="1", source="dai2024deepseekmoe")
def kind_has_shared_experts(kind_has_experts, shared_experts):
    """Feed-forward parts with shared experts beside the routed ones in a layer, by layer_kind."""
    return xp.where(shared_experts > 0, kind_has_experts, 0.0)
