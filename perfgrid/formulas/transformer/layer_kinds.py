"""Kinds of layers: which have a dense feed-forward block or experts, attention or a recurrent mixer, and where.

Models with experts may begin with a few dense layers (DeepSeek-V3 with three), and after these only every n-th layer
may have experts (Llama 4 Maverick every second one). What a stage of a pipeline holds is a run of layers; how many of
each kind it has follows from those before its begin and before its end (`run_of_layers`), along ``layer_kind``.

The label ``layer_pattern`` is set for a whole study: ``dense_first`` where any of its models has layers of both kinds,
otherwise ``uniform``. A uniform model has one kind of layers, with experts everywhere or nowhere, and its quantities do
not vary along ``layer_kind``: it costs nothing more.

Hybrid models have layers with attention and layers with a recurrent mixer, along ``mixer_kind``. The former are spread
evenly, each at the end of its period: of three recurrent layers and one with attention, say. In a run of layers both
kinds are spread alike over dense layers and layers with experts.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.axes import of_kinds, only, table, varying_kinds
from perfgrid.formulas.mixer_kinds import NONE, RECURRENT

# ---- equations ------------------------------------------------------------------------------------------------------


def layers_with_experts(position, leading_layers, expert_layer_step):
    """Layers with experts among the first ``position`` ones: every n-th after the leading dense ones."""
    behind = xp.maximum(position - leading_layers, 0.0)
    return xp.where(expert_layer_step > 1, xp.floor(behind / expert_layer_step), behind)


def layers_with_attention(position, kind_layers):
    """Layers with attention among the first ``position`` ones of a hybrid model.

    Half a layer in ``layers`` is added to the integer before it is divided, lest rounding take a layer away.
    """
    attention = of_kinds(kind_layers, only("mixer_kind", "attention"))
    return xp.floor((position * attention + 0.5) / of_kinds(kind_layers, 1.0))


def run_of_layers(begin, count, kind_layers, leading_layers, expert_layer_step):
    """Layers of each kind in a run of ``count`` layers from ``begin`` on, by layer_kind and mixer_kind.

    A run of a model whose layers are all alike is of this kind throughout.
    """
    axes = varying_kinds(kind_layers)
    found = count
    if "layer_kind" in axes:
        before, after = (layers_with_experts(p, leading_layers, expert_layer_step) for p in (begin, begin + count))
        found = table("layer_kind", dense=count - (after - before), experts=after - before)
    if "mixer_kind" in axes:
        before, after = (layers_with_attention(p, kind_layers) for p in (begin, begin + count))
        share = (after - before) / xp.where(count > 0, count, 1.0)
        found = found * table("mixer_kind", attention=share, recurrent=1 - share)
    return found


def last_layers(count, layers, kind_layers, leading_layers, expert_layer_step):
    """Layers of each kind among the last ``count`` ones of the model."""
    return run_of_layers(layers - count, count, kind_layers, leading_layers, expert_layer_step)


# ---- where the layers of each kind stand ----------------------------------------------------------------------------


def _by_pattern(of, label):
    return alternative(of=of, by="layer_pattern", label=label, unit="1", source="dai2024deepseekmoe")


@alternative(of="mixer_kinds", by="mixer", label=NONE, unit="1", source="shoeybi2019megatron")
def one_mixer_kind():
    """The one kind of layers of a model without recurrence."""
    return 1.0


@alternative(of="mixer_kinds", by="mixer", label=RECURRENT, unit="1", source="nvidia2025nemotronh")
def LABEL_mixer_kinds():
    """Each kind of layers of a hybrid model, by mixer_kind."""
    return table("mixer_kind", attention=1.0, recurrent=1.0)


@alternative(of="mixer_kind_share", by="mixer", label=NONE, unit="1", source="nvidia2025nemotronh")
def one_mixer_kind_share(mixer_kinds):
    """Part of the layers of each kind, of a model without recurrence: all, beside hybrid ones those with attention."""
    return mixer_kinds * only("mixer_kind", "attention") if varying_kinds(mixer_kinds) else mixer_kinds


@alternative(of="mixer_kind_share", by="mixer", label=RECURRENT, unit="1", source="nvidia2025nemotronh")
def LABEL_mixer_kind_share(attention_layers, layers):
    """Part of the layers with attention, and of those with a recurrent mixer alone, by mixer_kind."""
    return table("mixer_kind", attention=attention_layers / layers, recurrent=1 - attention_layers / layers)


@_by_pattern("kind_layers", "uniform")
def uniform_kind_layers(layers, mixer_kind_share):
    """Layers of each kind, where all feed-forward parts are alike, by mixer_kind."""
    return layers * mixer_kind_share


@_by_pattern("last_kind", "uniform")
def uniform_last_kind(mixer_kind_share):
    """1 for the kind of the last layers, where all feed-forward parts are alike; the mean of both mixers."""
    return mixer_kind_share


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
def dense_first_kind_layers(leading_layers, layers, expert_layer_step, mixer_kind_share):
    """Layers of each kind, where dense layers come first; by layer_kind and mixer_kind."""
    experts = layers_with_experts(layers, leading_layers, expert_layer_step)
    return mixer_kind_share * table("layer_kind", dense=layers - experts, experts=experts)


@constraint(reason="dense layers must lie before or between the layers with experts", source="dai2024deepseekmoe")
def dense_layers_fit_the_step(experts, layers, dense_layers, leading_layers, expert_layer_step):
    """Of the layers after the leading dense ones every n-th has experts, and no others are dense."""
    found = layers_with_experts(layers, leading_layers, expert_layer_step)
    return (experts == 0) | (dense_layers >= layers) | (found == layers - dense_layers)


@_by_pattern("last_kind", "dense_first")
def dense_first_last_kind(leading_layers, layers, expert_layer_step, mixer_kind_share):
    """1 for the kind of the last layers, where dense layers come first, by layer_kind; the mean of both mixers."""
    before, after = (layers_with_experts(p, leading_layers, expert_layer_step) for p in (layers - 1, layers))
    return mixer_kind_share * table("layer_kind", dense=1 - (after - before), experts=after - before)


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
    with_experts = of_kinds(kind_layers, only("layer_kind", "experts"))
    with_ffn = 1.0 - ffn_free_layers / xp.maximum(with_experts, 1.0)
    return table("layer_kind", dense=0.0, experts=xp.where(experts > 0, with_ffn, 0.0))


@_by_pattern("kind_is_dense", "dense_first")
def dense_first_kind_is_dense(experts, layers, ffn_free_layers):
    """Dense feed-forward parts in a layer, where dense layers come first; by layer_kind."""
    return table("layer_kind", dense=xp.where(experts > 0, 1.0, 1.0 - ffn_free_layers / layers), experts=0.0)


@formula(unit="1", source="dai2024deepseekmoe")
def kind_has_shared_experts(kind_has_experts, shared_experts):
    """Feed-forward parts with shared experts beside the routed ones in a layer, by layer_kind."""
    return xp.where(shared_experts > 0, kind_has_experts, 0.0)
