"""How the host starts the kernels of a server: as graphs, or one by one (``step_launching``: graphs, eager).

Eager servers (vLLM ``--enforce-eager``, SGLang ``--disable-cuda-graph``) hold no graphs, and steps of few sequences
wait for the launches of their kernels.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import at
from perfgrid.formulas.kernels.host import counted

from .latency import in_pass

FORMULAS = by_label(
    "step_launching",
    {
        "held_graph_memory": ("byte", "vllm2026graphs", "Memory of graphs that a server holds."),
        "prompt_launch_time": ("s", "sglang2025prefillgraph", "Host time of each kernel of a pass with prompts."),
        "late_step_time": ("s", "sglang2025prefillgraph", "Time of a step in which devices wait for its launches."),
    },
    {"graphs": ("graph_memory", "prefill_launch_time", 0), "eager": (0, "eager_launch_time", None)},
)


@formula(unit="1", source="gray2019cudagraphs")
def step_launches(kernels_time, launch_overhead, tp_all_reduces, moe_exchanges):
    """Kernels of a step that the formulas count, all-reduces, sending to experts and returning."""
    kernels = counted(at(in_pass(kernels_time, "decode"), resource="launch"), launch_overhead)
    return kernels + tp_all_reduces + 2 * moe_exchanges


@alternative(of="late_step_time", by="step_launching", label="eager", unit="s", source="sglang2025prefillgraph")
def eager_late_step_time(step_launches, eager_launch_time, busy_time, communication_time):
    """Time of a step in which devices wait for its launches: what the host takes longer than they do."""
    return xp.maximum(step_launches * eager_launch_time - in_pass(busy_time + communication_time, "decode"), 0.0)
