"""Admission: an engine that decodes takes new prompts at once, looks for them now and then, or holds them back.

SGLang can receive requests only every so many steps (``polling_steps``). TensorRT-LLM can hold prompts until they fill
a pass, or until every rank of an attention-parallel group has one (``gathering_prompts``), for so many steps at most
(``gathering_steps``). Both save passes, in which running sequences wait, at the cost of later first tokens.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import at, total

from .batching import FIXED, NODES

LOOP = NODES[0]


@formula(unit="1", source="rajbhandari2022deepspeedmoe")
def lockstep_replicas(experts, tp, ep, etp, dp):
    """Replicas that step together, since their tokens visit the same experts: those of one copy of all experts."""
    sharing = xp.minimum(xp.maximum(ep * etp / tp, 1.0), dp)
    return xp.where(experts > 0, sharing, 1.0)


@alternative(of="step_arrivals", by="batch_rule", label=FIXED, unit="1", source="yu2022orca")
def LABEL_step_arrivals():
    """Prompts that come while replicas that step together take one step: none are counted where all start together."""
    return 0.0


@alternative(of="step_arrivals", by="batch_rule", label="clients", unit="1", source="little1961")
def clients_step_arrivals(replica_batch, lockstep_replicas, decode_steps):
    """Prompts that come while replicas that step together take one step: of b sequences with n steps b/n end."""
    return at(replica_batch, load=LOOP) * lockstep_replicas / xp.maximum(decode_steps, 1.0)


@alternative(of="step_arrivals", by="batch_rule", label="rate", unit="1", source="little1961")
def rate_step_arrivals(request_rate, dp, lockstep_replicas, decode_step_time, load_weight):
    """Prompts that come while replicas that step together take one step."""
    return request_rate / dp * lockstep_replicas * total(decode_step_time * load_weight, "load")


@formula(unit="1", source="nvidia2025trtllmargs")
def gathering_span(gathering_prompts, gathering_steps, step_arrivals):
    """Steps for which the first of the gathered prompts is held: until k have come, (k - 1)/a, at most the limit."""
    further = xp.maximum(gathering_prompts - 1, 0.0)
    return xp.minimum(gathering_steps, further / xp.maximum(step_arrivals, 1e-9))


@formula(unit="1", source="nvidia2025trtllmargs")
def gathered_prompts(gathering_span, step_arrivals):
    """Prompts that one replica computes together since they were held: the first one and those that came meanwhile."""
    return 1 + gathering_span * step_arrivals


@formula(unit="1", source="sglang2026arguments, nvidia2025trtllmargs")
def held_steps(polling_steps, gathering_span, gathered_prompts):
    """Steps for which a prompt is held, mean: half of those between two looks, and of the span that all but the first
    of g gathered prompts wait half of: s·(1 + (g - 1)/2)/g.
    """
    return (xp.maximum(polling_steps, 1.0) - 1) / 2 + gathering_span * (1 + gathered_prompts) / (2 * gathered_prompts)
