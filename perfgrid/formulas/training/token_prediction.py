"""Multi-token prediction: modules after the last layer, each of which predicts one token further ahead.

A module puts the normalised hidden states and embeddings of the tokens to come side by side, projects them back to the
width of the model, and sends them through a layer and the output head, which are those of the model (DeepSeek 2024,
section 2.2). The modules run on the last stage, where they count as part of the head; that stage needs a copy of the
embedding. Their layer is of the kind of the model's last layer (`last_kind`).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import at, of_kinds, only, total

INPUTS = 2.0  # of the projection: hidden state and embedding

# ---- equations: of one prediction module ----------------------------------------------------------------------------


def module_kernels(layer, embedding, gemm_time, stream_time):
    """Kernel time for one microbatch, the head apart: layer, embedding, projection and the norms of its inputs."""
    projection = at(gemm_time, product="mtp_projection")
    norms = INPUTS * total(stream_time * only("stream_kernel", "norm"), "stream_kernel")
    return layer + embedding + projection + norms


def module_parameters(modules, embeddings, tied_embeddings, rank_module, rank_embedding):
    """Parameters of the prediction modules of one device, and of a table that it has for them alone."""
    lacks_table = (modules > 0) & xp.logical_not(tied_embeddings)
    return modules * rank_module + xp.where(lacks_table, 1 - embeddings, 0.0) * rank_embedding


# ---- passes ---------------------------------------------------------------------------------------------------------


@formula(unit="1", source="deepseek2024v3")
def head_passes(mtp_layers):
    """Passes through the output head for one microbatch: the model's own, and one of each prediction module."""
    return 1 + mtp_layers


# ---- parameters and work --------------------------------------------------------------------------------------------


@formula(unit="1", source="deepseek2024v3")
def mtp_projection_parameters(hidden_size):
    """Weights of the projection of one prediction module."""
    return INPUTS * hidden_size * hidden_size


@formula(unit="1", source="deepseek2024v3")
def rank_mtp_parameters(mtp_projection_parameters, hidden_size, last_kind, rank_layer_parameters, tp):
    """Parameters of one prediction module on one tensor-parallel rank, routed experts and shared tables apart."""
    layer = of_kinds(last_kind, rank_layer_parameters)
    return layer + mtp_projection_parameters / tp + (INPUTS + 1) * hidden_size  # and three norms


@formula(unit="1", source="deepseek2024v3")
def mtp_layers_by_stage(heads_by_stage, mtp_layers, weight_copies):
    """Prediction modules on one device of each stage, by stage."""
    return weight_copies * heads_by_stage * mtp_layers


@formula(unit="1", source="deepseek2024v3")
def mtp_forward_flops(last_kind, layer_forward_flops, mtp_projection_parameters, output_head_parameters):
    """FLOPs per token of one prediction module's forward pass: projection, layer and output head."""
    return of_kinds(last_kind, layer_forward_flops) + 2 * (mtp_projection_parameters + output_head_parameters)


# ---- time -----------------------------------------------------------------------------------------------------------


@formula(unit="s", source="deepseek2024v3")
def mtp_forward_exposed_tp_time(
    last_kind, layer_forward_exposed_tp_time, embedding_forward_exposed_tp_time, tp_gathering_time
):
    """Exposed tensor-parallel communication of one prediction module's forward pass, the head apart.

    Both inputs of the projection are gathered.
    """
    own = INPUTS * tp_gathering_time
    return of_kinds(last_kind, layer_forward_exposed_tp_time) + embedding_forward_exposed_tp_time + own


@formula(unit="s", source="deepseek2024v3")
def mtp_backward_exposed_tp_time(
    last_kind,
    layer_backward_exposed_tp_time,
    embedding_backward_exposed_tp_time,
    tp_gathering_time,
    tp_reduction_time,
):
    """Exposed tensor-parallel communication of one prediction module's backward pass, the head apart.

    Both inputs of the projection are gathered again, their gradients added up.
    """
    own = INPUTS * (tp_gathering_time + tp_reduction_time)
    return of_kinds(last_kind, layer_backward_exposed_tp_time) + embedding_backward_exposed_tp_time + own


# ---- memory ---------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="deepseek2024v3")
def mtp_activations(embedding_activations, sharded_tokens, hidden_size, activation_size):
    """Activations of one prediction module for one microbatch, layer and head apart: of two norms and a projection."""
    return embedding_activations + 2 * INPUTS * sharded_tokens * hidden_size * activation_size
