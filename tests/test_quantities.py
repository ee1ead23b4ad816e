"""Quantities and names as people write them: one number for one text, one entry for one name, and never silently."""

import json
import warnings
from typing import Any, cast

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.analysis.limiting import WORDS
from perfgrid.analysis.nomenclature import explained, word_of, words
from perfgrid.answers import serve, train
from perfgrid.answers.question import stated as number_of
from perfgrid.catalog import convert, load_catalog, load_variables
from perfgrid.catalog.names import resolved
from perfgrid.catalog.units import Taken, in_unit, multiple, whole
from perfgrid.engine.errors import PerfgridError
from perfgrid.printing.answer import DECIDE, HEADINGS, OTHERS
from perfgrid.study.study import setting_of
from perfgrid.text.terms import COUNTS, MFU, TERMS, counted
from tests.test_bad_input import run
from tools.nomenclature import PAGE, page

SMALL = """
title = "small"
outputs = ["step_time", "cost_per_training_run", "causal_model_flops_utilization"]
dtype = "float64"
[axes]
model = ["Llama-3.1 8B"]
device = [{device}]
parallelism = {{ devices = [8], tp = [1, 2], pp = [1] }}
[workload_parameters]
sequence_length = 4096
global_batch = 64
{more}
[best]
over = ["parallelism"]
minimize = "step_time"
"""


@pytest.fixture
def perfgrid(monkeypatch, capsys):
    """The command line in process: status, standard output, standard error."""
    return lambda *words: run(monkeypatch, capsys, *words)


@pytest.fixture
def study(tmp_path):
    """The path of a small study with some devices."""

    def written(device='"B200"', more="", name="s.toml"):
        path = tmp_path / name
        path.write_text(SMALL.format(device=device, more=more))
        return path

    return written


# ---- quantities -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        *(("32k", "1", 32e3), ("32K", "1", 32e3), ("128Ki", "1", 131072), ("1.5M", "1", 1.5e6), ("15T", "1", 15e12)),
        *(
            ("300B", "1", 300e9),
            ("300 B", "byte", 300),
            ("7B tokens", "1", 7e9),
        ),
        *(("0.5 TB/s", "byte/s", 5e11), ("96 GB", "byte", 96e9), ("96 GiB", "byte", 96 * 2**30), ("85 %", "1", 0.85)),
        *(("2.10 USD/h", "USD/h", 2.1), ("2.10 $/h", "USD/h", 2.1), ("2M", "USD", 2e6), ("30d", "s", 30 * 86400)),
        *(("50/s", "1/s", 50), ("1.1k", "1", 1100)),
    ],
)
def test_a_text_is_one_number(text, unit, number):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert in_unit(text, unit) == number


@pytest.mark.parametrize("text", ["32q", "k", "1e3k3", "2x", "", "--4", "1,000"])
def test_what_is_no_number_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"32k, 128Ki, 1\.5M or 15T"):
        in_unit(text, "1")


@pytest.mark.parametrize(("text", "tokens"), [("32k", 32768), ("8K", 8192), ("1M", 2**20), ("1.5k tokens", 1536)])
def test_k_of_a_length_is_1024_and_told(text, tokens):
    with pytest.warns(Taken, match=f"read as {tokens:,} tokens: of lengths"):
        assert convert(load_variables()["sequence_length"], text, "here") == tokens
    assert convert(load_variables()["training_tokens"], text, "here") == in_unit(text, "1") != tokens


def test_ki_of_a_length_needs_no_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert convert(load_variables()["prompt_tokens"], "128Ki", "here") == 131072


def test_every_quantity_of_tokens_in_a_row_is_a_length():
    """What has `length` counts tokens; the other quantities of tokens are totals, rates or choices."""
    lengths = {name for name, about in load_variables().items() if about.length}
    named = {n for n in load_variables() if n.endswith(("_length", "prompt_tokens", "output_tokens"))}
    assert named - lengths == {"convolution_length"}
    assert all(load_variables()[name].unit == "1" for name in lengths)


def test_whole_numbers_and_multiples():
    assert [whole(text) for text in ("64", "1k", "2Ki")] == [64, 1000, 2048]
    assert [multiple(text) for text in ("2x", "0.5 x", "1.5X", "x", 2, "2")] == [2, 0.5, None, None, None, None]
    for text in ("1.5", "1e400", "x"):
        with pytest.raises(ValueError, match=text):
            whole(text)


def test_numbers_of_python_stay_as_they_are():
    assert (number_of(5, "global_batch", "batch"), number_of(None, "batch", "clients")) == (5, None)
    assert number_of("1k", "global_batch", "batch") == 1000
    with pytest.raises(PerfgridError, match=r"clients must be a whole number, found '1\.5'"):
        number_of("1.5", "batch", "clients", whole=True)


def test_settings_take_words_without_quotes():
    assert setting_of("axes.device=[b200, H200]") == ("axes.device", ["b200", "H200"])
    assert setting_of("axes.sequence_length=[8k,4096]") == ("axes.sequence_length", ["8k", 4096.0])
    devices = ["H200[hbm_capacity=96 GB, hbm_bandwidth=2x]", "b200"]
    assert setting_of(f"axes.device=[{', '.join(devices)}]") == ("axes.device", devices)
    assert setting_of("axes.tp=[1, 2]") == ("axes.tp", [1, 2])


def test_an_axis_takes_text_in_lists_ranges_and_factors():
    found = pg.Study.make(
        outputs=["step_time"],
        axes={
            "model": "llama-3.1-8b",
            "device": "b200",
            "parallelism": {"devices": "8", "tp": [1]},
            "sequence_length": ["4Ki", 2048],
            "hbm_bandwidth": {"start": "4 TB/s", "stop": "8 TB/s", "num": 3},
            "scale_out_bandwidth": {"scale": ["1x", "2x"]},
        },
        workload_parameters={"global_batch": "1Ki", "training_tokens": "15T"},
    )
    axes = {axis.name: axis.labels.tolist() for axis in found.space.axes}
    assert axes["sequence_length"] == [4096, 2048]
    assert axes["hbm_bandwidth"] == [4e12, 6e12, 8e12]
    assert axes["scale_out_bandwidth"] == [1, 2]
    assert (found.space.constants["global_batch"], found.space.constants["training_tokens"]) == (1024, 15e12)


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "name"),
    [
        *(("device", "H200", "h200-sxm-141gb"), ("device", "NVIDIA_H200", "h200-sxm-141gb")),
        *(("device", "h100 PCIe", "h100-pcie-80gb"), ("device", "TPU v5p", "tpu-v5p"), ("device", "v5p", "tpu-v5p")),
        *(("device", "B200", "b200"), ("device", "b200", "b200"), ("device", "AMD Instinct MI300X", "mi300x")),
        *(("model", "Llama 3.1 8B", "llama-3.1-8b"), ("model", "qwen3_235b", "qwen3-235b-a22b")),
        *(("software", "Megatron LM", "megatron-lm"), ("topology", "GB200 NVL72", "gb200-nvl72-400g")),
        *(("node", "N3", "n3"), ("memory", "HBM3e", "hbm3e")),
    ],
)
def test_a_name_is_found_without_case_and_separators_or_by_its_only_part(kind, text, name):
    assert load_catalog().entry(kind, text).name == name


@pytest.mark.parametrize(
    "text", ["kimi-k1.5", "llama-3-8b", "llama-3.1-8b-instruct", "b20", "mi300", "deepseek-r1", "", "-"]
)
def test_a_name_of_something_else_is_not_replaced(text):
    for kind in ("model", "device"):
        with pytest.raises(PerfgridError, match=f"the catalog has no {kind}"):
            load_catalog().entry(kind, text)


def test_every_entry_is_found_by_its_own_name():
    """An entry wins over any other one that its name is a part of."""
    for kind, entries in load_catalog().tables.items():
        assert all(load_catalog().entry(kind, name) is entry for name, entry in entries.items())
        assert all(load_catalog().name_of(kind, name.upper().replace("-", "_")) == name for name in entries)


def test_a_name_of_several_lists_them():
    with pytest.raises(PerfgridError) as told:
        load_catalog().entry("device", "H100")
    assert str(told.value) == (
        "the device 'H100' may be h100-pcie-80gb, h100-sxm-80gb or h100-sxm-96gb-500w-hbm2e: name one of them"
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [("FP8", "fp8"), ("nvfp4", "fp4"), ("e4m3", "fp8"), ("float16", "fp16"), ("Half", "fp16"), ("bfloat16", "bf16")],
)
def test_number_formats_have_other_names(text, name):
    assert resolved(text, ["fp32", "fp16", "bf16", "fp8", "fp4"], parts=False) == name
    study = pg.Study.make(
        outputs=["step_time"],
        axes={"model": "llama-3.1-8b", "device": "b200", "parallelism": {"devices": 8, "tp": [1], "pp": [1]}},
        workload_parameters={"sequence_length": 2048, "global_batch": 8, "precision": text},
    )
    assert study.space.constants["precision"] == name


def test_a_study_states_entries_in_brackets_and_results_keep_canonical_names(study):
    found = pg.evaluate(pg.load_study(study('"NVIDIA H200[hbm_capacity=96 GB]", "B200"', 'precision = "FP8"')))
    assert found.device.values.tolist() == ["h200-sxm-141gb+hbm_capacity-96GB", "b200"]
    assert found.model.values.tolist() == ["llama-3.1-8b"]


def test_labels_and_conditions_take_the_same_names(study, perfgrid):
    path = study('"h200-sxm-141gb", "b200"', 'precision = "bf16"')
    text = path.read_text().replace("[axes]", "where = \"device != 'B200' or tp == 1\"\n[axes]", 1)
    path.write_text(text)
    status, shown, told = perfgrid("best", path, "--json")
    rows = {row["group"]["device"]: row["chosen"]["parallelism"] for row in json.loads(shown)["best"]}
    assert status == 0, told
    assert rows["b200"].startswith("tp1")
    status, shown, told = perfgrid("explain", path, "step_time", "--at", "device=H200,parallelism=tp1.pp1.dp8")
    assert status == 0, told
    assert "h200-sxm-141gb" in shown


def test_a_multiple_of_nothing_is_refused():
    with pytest.raises(PerfgridError, match="peak_fp4_rate=2x: the device has none"):
        load_catalog().entry("device", "H200[peak_fp4_rate=2x]")
    assert load_catalog().entry("device", "B200[hbm_bandwidth=2x]").values["hbm_bandwidth"] == pytest.approx(
        2 * cast(float, load_catalog().entry("device", "b200").values["hbm_bandwidth"])
    )


# ---- the same on every door -----------------------------------------------------------------------------------------


def test_a_catalog_file_that_is_named_twice_is_read_once(study, perfgrid, tmp_path):
    own = tmp_path / "c.toml"
    own.write_text(
        'kind = "device"\n[mine]\nextends = "H200"\ntitle = "mine"\nhbm_bandwidth = "6 TB/s"\nsource="none"\n'
    )
    path = study('"Mine"')
    path.write_text('catalog = ["c.toml"]\n' + path.read_text())
    status, _, told = perfgrid("best", path, "--catalog", own)
    assert (status, told) == (0, "")


def test_the_best_design_everywhere(study, perfgrid):
    path = study('"b200", "h200-sxm-141gb"')
    for words_ in (
        ("sensitivity", path, "--at", "best", "--wrt", "hbm_bandwidth"),
        ("distribution", path, "--of", "step_time", "--over", "parallelism", "--at", "best"),
        ("kernels", path, "--at", "best"),
    ):
        status, shown, told = perfgrid(*words_)
        assert status == 0, told
        assert "b200" in shown or "at 1 point" in shown


def test_a_stated_rent_means_the_same_in_a_study_and_in_a_question(study):
    """Every paid hour is used, unless the study says otherwise."""
    asked = pg.train("llama-3.1-8b", "b200", 8, batch=64, sequence=4096, price="2.10")
    rents = {"cost_per_device_hour": "2.10 USD/h"}
    made: dict[str, Any] = dict(
        outputs=["cost_per_training_run", "training_time"],
        axes={"model": "llama-3.1-8b", "device": "b200", "parallelism": {"devices": [8], "tp": [1], "pp": [1]}},
        workload_parameters={"sequence_length": 4096, "global_batch": 64},
        dtype="float64",
    )
    used = pg.evaluate(pg.Study.make(**made, overrides=rents)).squeeze()
    idle = pg.evaluate(pg.Study.make(**made, overrides=rents | {"utilization": 0.5})).squeeze()
    owned = pg.evaluate(pg.Study.make(**made)).squeeze()
    hours = float(used.training_time) / 3600
    assert float(used.cost_per_training_run) == pytest.approx(2.1 * 8 * hours, rel=1e-9)
    assert float(idle.cost_per_training_run) == pytest.approx(2 * float(used.cost_per_training_run), rel=1e-9)
    assert float(owned.cost_per_training_run) != pytest.approx(float(used.cost_per_training_run), rel=0.01)
    own = float(asked.training_time.squeeze()) / 3600
    assert float(asked.cost_per_training_run.squeeze()) == pytest.approx(2.1 * 8 * own, rel=1e-9)


def test_a_job_takes_a_device_in_brackets(perfgrid, tmp_path):
    job = tmp_path / "job.sh"
    job.write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 --swiglu --seq-length 4096 "
        "--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 64 --bf16 "
        "--untie-embeddings-and-output-weights --vocab-size 128256 --use-distributed-optimizer\n"
    )
    target = tmp_path / "s.toml"
    words_ = ("read-job", job, "--devices", "8", "--on", "H200[hbm_capacity=96 GB]")
    status, _, told = perfgrid(*words_, "-o", target)
    assert status == 0, told
    found = pg.evaluate(pg.load_study(target))
    assert found.device.values.tolist() == ["h200-sxm-141gb+hbm_capacity-96GB"]
    status, _, told = perfgrid(*words_[:-1], "H200[hbm_capacit=96 GB]")  # also where nothing is written
    assert (status, len(told.splitlines())) == (2, 1)
    assert "did you mean 'hbm_capacity'" in told


# ---- MFU and the nomenclature ---------------------------------------------------------------------------------------


def test_mfu_of_a_screen_counts_causal_pairs():
    """Half of the scores of long sequences are masked; the peak and the other counts stand beside it."""
    found = pg.train("qwen3-32b", "h200-sxm-141gb", 128, sequence=131072, headroom=0)
    shown = repr(found)
    mfu, palm, hfu = (float(found[name].squeeze()) for name in (MFU, *COUNTS))
    assert mfu == pytest.approx(0.485, abs=0.002)
    assert palm == pytest.approx(0.8162, abs=0.002)
    assert hfu >= palm > mfu
    (row,) = (line for line in shown.splitlines() if line.startswith("MFU  "))
    assert row.split()[1:] == [f"{mfu:.4g}", "of", "989.4", "TFLOP/s", "bf16"]
    assert f"PaLM MFU {palm:.4g}, HFU {hfu:.4g}" in shown
    assert counted((MFU, *COUNTS)) in shown.replace("\n", " ")


def test_tables_of_studies_name_the_peak(study, perfgrid):
    status, shown, told = perfgrid("best", study(more='precision = "fp8"'))
    assert status == 0, told
    assert "MFU counts causal pairs only; shares of the peak in fp8 (perfgrid formulas MFU)" in shown


def test_the_page_is_written_from_the_words():
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_source_of_the_nomenclature_is_known():
    known = load_catalog().references
    keys = {key.strip() for word in words().values() for key in word.source.split(",") if key}
    assert keys <= set(known)


def test_every_word_of_the_screens_is_explained():
    held = {name for name in (*serve.OUTPUTS, *train.OUTPUTS) if name.endswith("_memory")}
    parts = {name.removesuffix("_memory").replace("_", " ") for name in held}
    for name in (*HEADINGS.values(), *DECIDE.values(), *OTHERS.values(), *TERMS.values(), *WORDS.values(), *parts):
        assert word_of(name) is not None, name
    for name in ("limited by", "within the error", "about as good", "memory", "tp", "Near"):
        assert word_of(name) is not None, name


def test_formulas_explains_words_and_quantities(perfgrid):
    status, shown, told = perfgrid("formulas", "mfu", "TTFT", "hbm_bandwidth")
    assert (status, told) == (0, "")
    assert "causal_model_flops_utilization [1, training]" in shown
    assert "time_to_first_token" in shown
    status, shown, told = perfgrid("formulas", "mfuu")
    assert (status, shown, len(told.splitlines())) == (2, "", 1)
    assert explained("HFU")[0] is words()["HFU"]
    status, shown, _ = perfgrid("formulas", "HFU", "--json")
    assert json.loads(shown)[0]["quantities"][0]["name"] == "hardware_flops_utilization"


def test_words_name_quantities_that_decide():
    found = pg.train("llama-3.1-8b", "b200", 8, batch=8, sequence=2048, maximize="MFU")
    assert found.attrs["objective"] == MFU
    assert np.isfinite(found[MFU].values).all()


def test_a_number_in_brackets_has_its_unit():
    """80 of a memory would be 80 bytes; pure numbers, multiples and zero need no unit, nor do settings and files."""
    catalog = load_catalog()
    for text, message in {
        "h100-sxm-80gb[hbm_capacity=80]": r"hbm_capacity=80 has no unit: .* \(byte, or .* as in hbm_capacity=80 GiB$",
        "b200[scale_up_size=8,hbm_bandwidth=8e12]": r"hbm_bandwidth=8e12 has no unit: .* \(byte/s, .*=.* TB/s$",
        "tpu-v5p[purchase_price=9000]": r"purchase_price=9000 has no unit: .* \(USD, .*=.* USD$",
    }.items():
        with pytest.raises(PerfgridError, match=message):
            catalog.named("device", text)
    legal = "b200[scale_up_size=8,hbm_bandwidth=2x,hbm_capacity=80GB,purchase_price=0]"
    changed, name = catalog.named("device", legal)
    assert changed.entry("device", name).values["hbm_capacity"] == 80e9
    assert (
        catalog.with_values({"device.b200.hbm_capacity": 8e10}).entry("device", "b200").values["hbm_capacity"] == 8e10
    )
