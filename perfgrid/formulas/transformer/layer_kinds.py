"""Kinds of layers: which layers of a model have a dense feed-forward block, which have experts, and where they stand.

Models with experts may begin with a few dense layers (DeepSeek-V3 with three). The layers of one kind are then a run:
those of kind k are ``kind_layers`` layers from ``kind_begin`` on, along the inner axis ``layer_kind``. What a stage of
a pipeline holds is a run of layers, too; of each kind it has the overlap of both (`run_of_layers`).

The label ``layer_pattern`` is set for a whole study: ``dense_first`` where any of its models has layers of both kinds,
otherwise ``uniform``. A uniform model has one kind of layers, with experts everywhere or nowhere, and its quantities do
not vary along ``layer_kind``: it costs nothing more.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import several_kinds, table

# ---- equations ------------------------------------------------------------------------------------------------------


def run_of_layers(begin, count, kind_begin, kind_layers):
    """Layers of each kind in a run of ``count`` layers from ``begin`` on: max(min(ends) - max(begins), 0).

    A run of a model whose layers are all alike is of this kind throughout.
    """
    if not several_kinds(kind_begin, kind_layers):
        return count
    ends = xp.minimum(begin + count, kind_begin + kind_layers)
    return xp.maximum(ends - xp.maximum(begin, kind_begin), 0.0)


def last_layers(count, layers, kind_begin, kind_layers):
    """Layers of each kind among the last ``count`` ones of the model."""
    return run_of_layers(layers - count, count, kind_begin, kind_layers)


# ---- where the layers of each kind stand ----------------------------------------------------------------------------


def _by_pattern(of, label):
    return alternative(of=of, by="layer_pattern", label=label, unit="1", source="dai2024deepseekmoe")


@_by_pattern("kind_begin", "uniform")
def uniform_kind_begin():
    """Number of the first layer of each kind, where all layers are alike."""
    return 0.0


@_by_pattern("kind_layers", "uniform")
def uniform_kind_layers(layers):
    """Layers of each kind, where all layers are alike: all."""
    return layers


@_by_pattern("last_kind", "uniform")
def uniform_last_kind():
    """1 for the kind of the last layer, where all layers are alike."""
    return 1.0


@formula(unit="1", source="dai2024deepseekmoe")
def leading_layers(layers, dense_layers, experts):
    """Dense layers before the first one with experts: all of a model without experts."""
    return xp.where(experts > 0, xp.minimum(dense_layers, layers), layers)


@_by_pattern("kind_begin", "dense_first")
def dense_first_kind_begin(leading_layers):
    """Number of the first layer of each kind, where dense layers come first; by layer_kind."""
    return table("layer_kind", dense=0.0, experts=leading_layers)


@_by_pattern("kind_layers", "dense_first")
def dense_first_kind_layers(leading_layers, layers):
    """Layers of each kind, where dense layers come first; by layer_kind."""
    return table("layer_kind", dense=leading_layers, experts=layers - leading_layers)


@_by_pattern("last_kind", "dense_first")
def dense_first_last_kind(leading_layers, layers):
    """1 for the kind of the last layer, where dense layers come first; by layer_kind."""
    experts = xp.where(leading_layers < layers, 1.0, 0.0)
    return table("layer_kind", dense=1 - experts, experts=experts)


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
def dense_first_kind_has_experts(experts, leading_layers, layers, ffn_free_layers):
    """Feed-forward parts with experts in a layer, where dense layers come first; by layer_kind."""
    with_ffn = 1.0 - ffn_free_layers / xp.maximum(layers - leading_layers, 1.0)
    return table("layer_kind", dense=0.0, experts=xp.where(experts > 0, with_ffn, 0.0))


@_by_pattern("kind_is_dense", "dense_first")
def dense_first_kind_is_dense(experts, layers, ffn_free_layers):
    """Dense feed-forward parts in a layer, where dense layers come first; by layer_kind."""
    return table("layer_kind", dense=xp.where(experts > 0, 1.0, 1.0 - ffn_free_layers / layers), experts=0.0)


@formula(unit="1", source="dai2024deepseekmoe")
def kind_has_shared_experts(kind_has_experts, shared_experts):
    """Feed-forward parts with shared experts beside the routed ones in a layer, by layer_kind."""
    return xp.where(shared_experts > 0, kind_has_experts, 0.0)
