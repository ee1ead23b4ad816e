"""The time of an iteration T(b, c): against steps and passes of the formulas, and the oracle's surface."""

import json
import math

import pytest

from perfgrid import Study, kernels
from tests.inference.designs import value
from tests.inference.oracle import of_design
from tests.test_bad_input import run
from tests.test_kernels import study as training

DENSE = {"model": "llama-3.1-8b", "device": "h100-sxm-80gb"}
LENGTHS = {"prompt_tokens": 1024, "output_tokens": 257}


def surface(model="llama-3.1-8b", software="vllm", layout=None, **parameters):
    axes = {"model": [model], "device": [DENSE["device"]], "software": [software], "topology": ["rail-optimized"]}
    study = Study.make(
        workload="inference",
        outputs=["time_to_first_token"],
        axes=axes | {"parallelism": {"devices": [1], "tp": [1]} | (layout or {})},
        workload_parameters={"batch_rule": "rate", "request_rate": 1} | LENGTHS | parameters,
    )
    found = kernels(study).iterations
    assert found is not None
    return found


def at(found, b, c):
    return found.time[found.decoding.index(b)][found.prompting.index(c)]


@pytest.mark.parametrize("b", [1, 16, 64])
def test_without_prompts_it_is_a_step(b):
    design = DENSE | {"software": "vllm", "batch_rule": "concurrency", "batch": float(b)} | LENGTHS
    assert at(surface(), b, 0) == pytest.approx(
        value("decode_step_time", **design), rel=1e-4
    )  # hardly any wait for room


def test_weights_are_read_once():
    found = surface()
    assert at(found, 1, 128) < 1.15 * at(found, 1, 0)
    assert at(found, 1, 128) < 0.6 * (at(found, 1, 0) + at(found, 0, 128))
    for b, row in zip(found.decoding[1:], found.time[1:], strict=True):
        assert list(row) == sorted(row), b
    assert found.bound_by[1][0] == "hbm"
    assert found.bound_by[1][-1] == "arithmetic"


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("llama-3.1-8b", {}),
        ("deepseek-v2-lite", {}),
        ("nemotron-h-8b", {}),
        ("llama-3.1-70b", {"devices": [8], "tp": [4], "pp": [2]}),
    ],
)
def test_it_is_the_surface_of_the_oracle(model, layout):
    """Which adds products of b + c rows, steps and attention of chunks up on its own."""
    found = surface(model, layout=layout)
    degrees = {name: float(layout.get(name, [1])[0]) for name in ("tp", "pp")} | {"dp": 1.0, "etp": 1.0}
    degrees |= {"etp": degrees["tp"]}
    design = {"model": model, "device": DENSE["device"], "software": "vllm"} | degrees | LENGTHS
    tables = of_design(design, 8192, 64, longest=1024)
    context = 1024 + 128
    for b in (1, 16):
        assert at(found, b, 0) == pytest.approx(tables.time(b, b * context), rel=0.03)
        for c in (128, 512):
            middle = round(512 - c / 2)  # of the prompt
            expected = tables.time(b, b * context, c, middle)
            if expected > 1.01 * tables.launch_time:
                assert at(found, b, c) == pytest.approx(expected, rel=0.1), (b, c)


def test_prompts_that_go_first_have_iterations_of_their_own():
    found = surface(software="sglang")
    assert not found.mixed
    assert found.bound_by[1][1] == ""
    assert math.isnan(found.time[1][1])
    assert found.time[0][1] > 0
    assert surface(software="sglang[prefill_first=false]").mixed


def test_an_iteration_is_not_fuller_than_its_limit():
    found = surface(software="vllm[prefill_chunk_tokens=512]")
    assert found.prompting[-1] == 512
    beside = at(found, 16, 512), at(surface(), 16, 512)
    assert beside[0] < beside[1]  # 496 tokens beside 16 sequences
    assert at(found, 0, 512) == pytest.approx(at(surface(), 0, 512), rel=1e-6)


def test_training_has_none():
    assert kernels(training(), {}).iterations is None


def test_the_command_prints_them(monkeypatch, capsys):
    command = ("kernels", "studies/chat_p99.toml", "--at", "device=b200,prefix_hit_rate=0.8,parallelism=tp1.pp1.dp6")
    status, out, _ = run(monkeypatch, capsys, *command)
    assert status == 0
    heading = next(i for i, line in enumerate(out.splitlines()) if line.startswith("an iteration [ms]"))
    assert out.splitlines()[heading + 1].split()[:3] == ["sequences", "0", "tokens"]
    _, out, _ = run(monkeypatch, capsys, *command, "--json")
    found = json.loads(out)["iterations"]
    assert found["time"][0][0] is None
    assert len(found["time"]) == len(found["decoding"])
    assert len(found["bound_by"][1]) == len(found["prompting"])
