"""A small real study for tests."""

from perfgrid.study.study import Study

CONTENT = {
    "title": "small",
    "outputs": ["step_time", "model_flops_utilization", "memory_per_device", "tp_gather_algorithm"],
    "axes": {
        "model": ["llama-2-7b", "llama-2-70b"],
        "device": ["a100-sxm-80gb", "h100-sxm-80gb", "mi300x"],
        "topology": ["rail-optimized", "fat-tree-2to1"],
        "microbatch": [1, 2],
        "recompute": ["none", "selective", "full"],
        "parallelism": {"devices": [64, 128], "tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8], "chunks": [1, 2]},
        "hbm_bandwidth": {"scale": [0.5, 1.0, 2.0]},
        "scale_up_bandwidth": {"scale": [1.0, 3.0]},
    },
    "workload_parameters": {"sequence_length": 2048, "global_batch": 192},
}


def content(**changes):
    return {**CONTENT, **changes}


def study(**changes) -> Study:
    return Study.make(**content(**changes))
