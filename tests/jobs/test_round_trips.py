"""What is written for a framework and read again is the same design, but for what the text says it cannot express."""

import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgrid.catalog import load_catalog
from perfgrid.jobs.formats import formats, glossary
from perfgrid.jobs.read import read_job
from perfgrid.jobs.write import write_launch

EXAMPLES = int(os.environ.get("PERFGRID_ROUND_TRIPS", "15"))  # of each format
MODELS = (
    "llama-3.1-8b",
    "llama-3.1-405b",
    "gpt3-175b",
    "mixtral-8x7b",
    "qwen3-235b-a22b",
    "deepseek-v3",
    "gemma-2-27b",
)
NAMED = re.compile(r"(\w+) = ")
WRITERS = {name: form for name, form in formats().items() if form.writes}


def powers(most):
    return st.sampled_from([2**i for i in range(most + 1)])


@st.composite
def training_designs(draw):
    """A model and a design whose layout is legal, whatever a framework can express of it."""
    model = load_catalog().entry("model", draw(st.sampled_from(MODELS)))
    tp, cp, dp = draw(powers(3)), draw(powers(2)), draw(powers(5))
    layers = int(model.values["layers"])
    stages = [(p, c) for p in range(1, 17) for c in (1, 2, 4) if layers % (p * c) == 0 and (p > 1 or c == 1)]
    pp, chunks = draw(st.sampled_from(stages))
    values = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "chunks": chunks, "devices": tp * cp * pp * dp}
    if model.values["experts"]:
        split = [(e, s) for e in (1, 2, 4, 8, 16) for s in (1, 2) if tp * cp * dp % (e * s) == 0]
        values["ep"], values["etp"] = draw(st.sampled_from(split))
        values["capacity_factor"] = draw(st.sampled_from([0, 1.0, 1.25]))
    values["microbatch"] = draw(powers(3))
    values["global_batch"] = values["microbatch"] * dp * draw(st.sampled_from([1, 2, pp, 2 * pp, 12]))
    values["sequence_length"] = draw(st.sampled_from([2048, 4096, 8192, 131072]))
    values["precision"] = draw(st.sampled_from(["bf16", "fp16", "fp32", "fp8", "fp4"]))
    scalings = {"fp8": ["delayed", "tensor", "row", "block", "mx"], "fp4": ["nvfp4"]}
    values["scaling"] = draw(st.sampled_from(scalings.get(values["precision"], ["usual"])))
    values["zero"] = draw(st.integers(0, 3))
    values["zero_size"] = draw(st.sampled_from([0, 0, cp * dp // 2])) if values["zero"] > 1 and cp * dp > 2 else 0
    choices = {
        "recompute": ["none", "selective", "full"],
        "schedule": ["1f1b", "gpipe", "zb_v", "dualpipe"],
        "offload": ["none", "optimizer", "activations"],
        "rank_order": ["tp-cp-dp-pp", "tp-cp-pp-dp"],
        "cp_method": ["ring", "all_gather", "ulysses", "hybrid"],
    }
    values |= {name: draw(st.sampled_from(words)) for name, words in choices.items()}
    return model, values | {"sequence_parallel": draw(st.booleans())}


def returned(name, model, values):
    """The differences between a design and what is read from its text, notes apart."""
    form = formats()[name]
    launch = write_launch(values, model, form, form.versions[-1])
    noted = {found[1] for note in launch.notes if (found := NAMED.match(note))}
    missing = {n: v for n, v in values.items() if n in noted and n in form.open}
    named = (
        model.name if "catalog_model" in noted or any(note.startswith("the model") for note in launch.notes) else None
    )
    job = read_job(launch.text, format=name, stated=missing, model=named)
    expected = {n: v for n, v in values.items() if n not in noted}
    default = {n: glossary()[n].word(glossary()[n].default_value) for n in expected if n not in job.values}
    found = {n: job.values.get(n, default.get(n)) for n in expected}
    unlike = {n: (v, found[n]) for n, v in expected.items() if v != found[n]}
    assert job.model is not None
    if job.model.name != model.name:
        unlike["model"] = (model.name, job.model.name)
    return unlike, launch


@pytest.mark.parametrize("name", [name for name, form in WRITERS.items() if form.workload == "training"])
def test_a_written_design_is_read_back(name):
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(training_designs())
    def check(design):
        unlike, launch = returned(name, *design)
        assert not unlike, launch.text

    check()
