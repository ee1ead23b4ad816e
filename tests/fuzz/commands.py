"""Command lines of every command and option that the program has, read from the program itself."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from perfgrid.cli.main import COMMANDS, imported
from perfgrid.study.view import Kind

from .studies import wheres
from .values import TEXTS, chance, texts, toml, values

STUDY, CATALOG, CONFIG, RECORDS = "in/study.toml", "in/catalog.toml", "in/config.json", "in/records.jsonl"
FORMULAS = "in/formulas.py"
RESULTS = ("in/result.nc", "in/result.zarr", "in/result.pgf")
FITTING: dict[str, dict[str, tuple[str, ...]]] = {  # what fits the studies of a workload; results are of manufacturing
    "training": {
        "quantity": ("step_time", "memory_per_device", "tp_gather_time"),
        "pareto": ("step_time,memory_per_device",),
        "over": ("parallelism", "microbatch", "parallelism,device", "hbm_bandwidth=1e12:4e12"),
        "subject_to": ("memory_per_device <= 80 GiB", "step_time < 1"),
        "at": (
            "model=llama-2-7b,device=h100-sxm-80gb,topology=rail-optimized,microbatch=1,parallelism=tp4.pp2.dp1",
            "microbatch=1",
            "parallelism=tp2.pp1.dp4",
            "best",
            "best,tp=2",
        ),
        "wrt": ("hbm_bandwidth", "peak_bf16_rate,hbm_bandwidth", "catalog"),
    },
    "inference": {
        "quantity": ("time_per_output_token", "time_to_first_token"),
        "pareto": ("time_to_first_token,time_per_output_token",),
        "over": ("parallelism", "device"),
        "subject_to": ("time_to_first_token <= 1 s",),
        "at": ("model=llama-3.1-8b,device=h100-sxm-80gb,topology=rail-optimized,parallelism=tp1.pp1.dp1", "best"),
        "wrt": ("hbm_bandwidth",),
    },
    "collectives": {
        "quantity": ("bus_bandwidth", "collective_time"),
        "pareto": ("bus_bandwidth,collective_time",),
        "over": ("system", "collective"),
        "subject_to": ("collective_time <= 1 s",),
        "at": ("collective=all_reduce,group_size=8,message_size=1024,system=rails", "system=mesh", "best"),
        "wrt": ("scale_up_bandwidth",),
    },
    "sequence_mixer": {
        "quantity": ("mixer_decode_time", "mixer_forward_time"),
        "pareto": ("mixer_decode_time,mixer_forward_time",),
        "over": ("mixer", "device"),
        "subject_to": ("mixer_decode_time <= 1 s",),
        "at": ("device=h100-sxm-80gb,mixer=full_attention,sequence_length=1024", "device=mi300x", "best"),
        "wrt": ("hbm_bandwidth", "catalog"),
    },
    "manufacturing": {
        "quantity": ("die_cost", "die_yield"),
        "pareto": ("die_cost,die_yield",),
        "over": ("device", "die_area=1e-4:8e-4", "defect_density", "yield_model,device"),
        "subject_to": ("die_yield >= 0.5",),
        "at": ("device=b200,yield_model=harvested,defect_density=0.5", "device=mi300x", "best"),
        "wrt": ("wafer_price", "catalog"),
    },
}
SAME = {"of": "quantity", "minimize": "quantity", "maximize": "quantity", "choose": "over"}  # take the same words
WORDS: dict[str, tuple[str, ...]] = {  # what an argument or option of this name takes, if it is no count
    "study": (STUDY,),
    "what": (STUDY,),
    "other": (STUDY, STUDY, *RESULTS),
    "result": ("in/result.pgf",),
    "store": ("in/result.zarr",),
    "files": (RECORDS,),
    "config": (CONFIG,),
    "catalog": (CATALOG,),
    "formulas": (FORMULAS,),
    "settings": (
        "device.b200.hbm_bandwidth=10e12",
        "axes.microbatch=[1, 2]",
        "axes.sample={num=4}",
        'axes.budget=["h100-budget"]',
        "workload_parameters.global_batch=8",
        "title=1",
        "axes=1",
        "device.b200.hbm_bandwith=1",
        "a.b.c.d.e=1",
        "dtype=float64",
        "outputs=['own_price']",
        "hbm_bandwidth=5 TB/s",
        "device_link.nvlink=1",
    ),
    "output": ("out/x.nc", "out/x.zarr", "out/x.pgf", "out/x", "out/x.toml", "out", "out/absent/x.nc", STUDY),
    "figure": ("out/x.png", "out/x.pdf", "out/x"),
    "view": (*get_args(Kind), "own", "pie"),
    "dtype": ("float32", "float64", "float23"),
    "memory": ("4GB", "1 kB", "0", "-1GB", "1e30 GB"),
    "workers": ("1", "0", "-3"),
    "scheduler": ("nonsense", "tcp://"),
    "method": ("quantiles", "tornado", "morris", "sobol", "guess"),
    "quantiles": ("0.1,0.5", "2", "nan", ""),
    "workload": ("training", "inference", "manufacturing", "banana"),
    "group": ("nobody",),
    "name": ("h100-sxm-80gb", "device.b200", "own"),
    "in_table": ("device", "model", "chair"),
    "table": ("device", "model", "chair"),
    "like": ("h100-sxm-80gb", "own", "llama-2-7b"),
    "source": ("touvron2023llama2", "nobody2020"),
    "variables": ("die_cost", "nothing"),
    "software": ("megatron-lm", "nothing"),
    "device": ("h100-sxm-80gb",),
    "model": ("llama-2-7b", "mixtral-8x7b", CONFIG, "in", "nothing"),
    "on": ("h100-sxm-80gb", "b200,mi300x", "tpu-v5p", "b200[hbm_bandwidth=2x, hbm_capacity=1 TB]", "b200[", "nothing"),
    "within": ("30d", "1", "1e9", "x"),
    "budget": ("1e6", "2 MUSD", "0", "x"),
    "devices": ("8", "1,16", "12", "4-64", "9-15", "8-", "x", "0", "1000000000"),
    "tokens": ("15T", "1e12", "2.5q", "-1K"),
    "price": ("2.1", "2,3 USD/h", "0", "x"),
    "precision": ("bf16", "fp8", "int4", "banana"),
    "topology": ("rail-optimized", "nothing"),
    "save": ("out/s.toml", "out/s.nc", STUDY),
    "csv": ("out/s.csv", "out/s", "out/absent/s.csv", "out"),
    "prefill": ("auto", "tp=1", "tp=2,workers=2,batch=4", "tp=1,device=b200", "tp=0", "tq=1", "tp"),
    "decode": ("auto", "tp=1,dp=2", "tp=8,ep=8", "workers=2", "tp=1,tp=2", ""),
    "ttft": ("1s", "500 ms", "x"),
    "tpot": ("40ms", "0", "x"),
    "kind": ("records", "csv", "megatron", "kineto", "training", "nothing"),
    "job": (STUDY, CONFIG),
    "facts": ("model=llama-2-7b", "devices=8", "sequence_length=4096", "tp", "batch=-1", "nothing=1"),
    "trace": (STUDY, RECORDS),
}
PICTURES = ("out/x.svg", "out/x.png", "out/x.pdf", "out/x.nc", "out", "out/absent/x.svg", STUDY)
COUNTS = ("1", "2", "3", "16", "0", "-1", "1000000000", "1e3", "2.5", "x", "9" * 400)
KEYS = (
    "axes.tp",
    "axes.sample",
    "axes.device",
    "best",
    "where",
    "outputs",
    "overrides.hbm_capacity",
    "workloads",
    "view",
)
EVERY_RECORD = {"unseen", "bulk"}  # flags that read all that perfgrid ships: seconds, and nothing of the user's


def _leaves() -> dict[tuple[str, ...], list[Any]]:
    found = {}
    for name in (n for n in COMMANDS if n != "explore"):  # which serves a page until it is interrupted
        command = imported(name)
        inside = getattr(command, "commands", None)
        parts = {(name, sub): held for sub, held in inside.items()} if inside else {(name,): command}
        skipped = {"help", *EVERY_RECORD}
        found |= {path: [p for p in part.params if p.name not in skipped] for path, part in parts.items()}
    return found


LEAVES = _leaves()
OFTEN = ("run", "best", "distribution", "sensitivity", "explain")  # catalogs have cases of their own
DESIGN = ("explain", "kernels", "timeline", "optimize")  # ask for labels or quantities
QUESTIONS = ("train", "serve")  # have a study of their own
OFTENER = {
    "output": 15,
    "figure": 15,
    "csv": 15,
    "view": 50,
    "overwrite": 40,
    "other": 50,
    "a": 60,
    "b": 60,
}  # in a hundred lines
PATHS = [path for path in LEAVES if path[0] != "catalog" for _ in range(12 if path[0] in OFTEN else 1)]


@st.composite
def word(draw: Any, path: tuple[str, ...], name: str, workload: str) -> str:
    """The value of an option or argument of a command."""
    if chance(draw, 2):
        return draw(st.sampled_from([t for t in TEXTS if "\x00" not in t]))  # no command line holds a NUL
    if chance(draw, 2):
        return draw(texts).replace("\x00", "")
    if name == "settings" and chance(draw, 40):
        return f"{draw(st.sampled_from(KEYS))}={toml({'k': draw(values)}).partition('=')[2].strip()}"
    if name == "settings" and chance(draw, 20):
        return f"where={draw(wheres)!r}"
    if (path == ("diff",) and name in ("a", "b")) or (name == "what" and chance(draw, 20)):
        return draw(st.sampled_from(RESULTS))
    if path == ("plot",) and name == "output":
        return draw(st.sampled_from(PICTURES))
    if path[0] in QUESTIONS and name in ("minimize", "maximize"):
        return draw(st.sampled_from((*FITTING["training"]["quantity"], "tokens_per_second", "nothing")))
    name = "at" if name in ("a", "b") else SAME.get(name, name)
    return draw(st.sampled_from(FITTING[workload].get(name) or WORDS.get(name, COUNTS)))


@st.composite
def lines(draw: Any, workload: str, only: tuple[str, ...] | None = None) -> list[str]:
    """A command line: what is required, some options, rarely nonsense."""
    path = only or draw(st.sampled_from(PATHS))
    found = list(path)
    for parameter in LEAVES[path]:
        option = parameter.opts[0].startswith("-")
        needed = parameter.required or (not option and path[0] in ("validate", "calibrate"))
        needed = needed or (parameter.name in ("at", "over") and path[0] in DESIGN)
        if not (needed or chance(draw, OFTENER.get(parameter.name, 6))):
            continue
        if option:
            found.append(parameter.opts[0])
        if not getattr(parameter, "is_flag", False):
            found.append(draw(word(path, parameter.name, workload)))
    if chance(draw, 1):
        found.insert(draw(st.integers(0, len(found))), draw(texts).replace("\x00", ""))
    return found
