"""The commands of the catalog as a user runs them: list, show and check."""

import json

import pytest

from perfgrid.catalog import load_catalog
from tests.test_bad_input import run

CATALOG = load_catalog()
CHIP = """
kind = "device"
[my-chip]
extends = "h100-sxm-80gb"
title = "My chip"
"""


@pytest.fixture
def catalog(monkeypatch, capsys):
    """Run ``perfgrid catalog ...``: (exit status, standard output, standard error)."""

    def call(*arguments):
        return run(monkeypatch, capsys, "catalog", *arguments)

    return call


def refused(answer, *parts):
    status, out, err = answer
    assert status == 2
    assert out == ""
    assert err.startswith("perfgrid: ")
    assert len(err.strip().splitlines()) == 1
    for part in parts:
        assert part in err, err


# ---- list -----------------------------------------------------------------------------------------------------------


def test_list_names_every_entry(catalog):
    status, out, _ = catalog("list", "--wide")
    assert status == 0
    firsts = {line.split()[0] for line in out.splitlines() if line}
    for table in CATALOG.tables.values():
        assert set(table) <= firsts
        assert all(entry.title in out for entry in table.values())


def test_list_of_models_shows_counts(catalog):
    _, out, _ = catalog("list", "model")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert rows["model"].split("  ")[-3:] == ["total parameters [billion]", "parameters per token [billion]", "title"]
    assert rows["llama-3.1-8b"].split()[1] == "8.03"
    assert rows["deepseek-v3"].split()[1:3] == ["671", "36.63"]
    assert f"{len(CATALOG.tables['model'])} model entries" in out
    assert "h100-sxm-80gb" not in rows


def test_list_of_devices_shows_rate_memory_and_bandwidth(catalog):
    _, out, _ = catalog("list", "device")
    rows = {line.split()[0]: line.split() for line in out.splitlines()}
    assert [word for word in rows["device"] if "[" in word] == ["[TFLOP/s]", "[GiB]", "[TB/s]"]
    assert rows["h100-sxm-80gb"][2:5] == ["989.4", "80", "3.35"]


def test_list_of_software_tells_what_trains_what_serves_and_on_whose_devices(catalog):
    _, out, _ = catalog("list", "software")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert rows["software"].split()[2:] == ["supported", "vendors", "launch", "overhead", "[us]", "title"]
    assert "training" in rows["megatron-lm"]
    assert "nvidia, amd, intel" in rows["megatron-lm"]
    assert "inference" in rows["tensorrt-llm"]
    assert "amd" not in rows["tensorrt-llm"]
    listed = {row["name"]: row for row in json.loads(catalog("list", "software", "--json")[1])["software"]}
    assert listed["vllm-2024-rocm"]["workload"] == "inference"
    assert listed["vllm-2024-rocm"]["supported_vendors"] == {"nvidia": 0, "amd": 1, "google": 0, "intel": 0}


def test_show_names_the_vendors_of_a_set_and_keeps_numbers(catalog):
    lines = {line.split()[0]: line for line in catalog("show", "sglang")[1].splitlines() if line}
    assert "nvidia, amd, google " in lines["supported_vendors"]
    lines = {line.split()[0]: line for line in catalog("show", "rail-optimized")[1].splitlines() if line}
    assert "scale_up 1, scale_out 1" in lines["tier_oversubscription"]


def test_list_of_devices_names_their_vendors(catalog):
    rows = {line.split()[0]: line.split()[1] for line in catalog("list", "device", "--wide")[1].splitlines()}
    assert rows["device"] == "device"  # device vendor
    assert (rows["mi300x"], rows["tpu-v7"], rows["gaudi3"], rows["gb300"]) == ("amd", "google", "intel", "nvidia")


def test_a_user_says_that_a_software_runs_elsewhere():
    ported = CATALOG.with_values({"software.tensorrt-llm.supported_vendors.amd": 1})
    found = ported.tables["software"]["tensorrt-llm"].values["supported_vendors"]
    assert found == {"nvidia": 1, "amd": 1, "google": 0, "intel": 0}
    own = CATALOG.with_values({"device.mi300x.device_vendor": "unstated"})
    assert own.tables["device"]["mi300x"].values["device_vendor"] == 0


def test_list_as_json_with_an_own_file(catalog, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(CHIP)
    status, out, _ = catalog("list", "device", "--catalog", path, "--json")
    assert status == 0
    rows = {row["name"]: row for row in json.loads(out)["device"]}
    assert rows["my-chip"]["peak_bf16_rate"] == 989.4e12
    models = {row["name"]: row for row in json.loads(catalog("list", "model", "--json")[1])["model"]}
    assert models["mixtral-8x7b"]["total_parameters"] == 46_702_792_704


def test_list_of_an_unknown_table(catalog):
    refused(catalog("list", "models"), "'models'", "'model'")


# ---- show -----------------------------------------------------------------------------------------------------------


def test_show_prints_values_units_ranges_and_citations(catalog):
    status, out, _ = catalog("show", "h100-sxm-80gb")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == f"device h100-sxm-80gb: {CATALOG.entry('device', 'h100-sxm-80gb').title}"
    assert any(line.startswith("hbm_bandwidth") and "3.35 TB/s" in line for line in lines)
    assert any(line.startswith("device_link") and "nvlink" in line for line in lines)
    shown = next(line for line in lines if line.startswith("matrix_efficiency"))
    detail = CATALOG.entry("device", "h100-sxm-80gb").details["matrix_efficiency"]
    for part in (f"{detail.low:.4g}", f"{detail.high:.4g}", detail.confidence or "", detail.note or ""):
        assert part in shown
    for key in set(CATALOG.entry("device", "h100-sxm-80gb").sources.values()):
        assert f"[{key}] {CATALOG.references[key]}" in lines


def test_show_a_model_with_its_counts(catalog):
    _, out, _ = catalog("show", "kimi-k2")
    assert "counted total_parameters = 1,026,408,209,408" in out
    assert "counted key_value_cache_width = 576" in out


def test_show_as_json(catalog):
    _, out, _ = catalog("show", "model.gpt-moe-1.8t", "--json")
    data = json.loads(out)
    assert (data["table"], data["name"]) == ("model", "gpt-moe-1.8t")
    hidden = data["values"]["hidden_size"]
    assert (hidden["value"], hidden["low"], hidden["high"], hidden["year"]) == (10752, 10240, 12288, 2023)
    assert hidden["confidence"] == "estimate"
    assert hidden["unit"] == "1"
    assert hidden["citation"] == CATALOG.references[hidden["source"]]
    assert hidden["meaning"] == CATALOG.variables["hidden_size"].meaning
    assert set(data["values"]) == {n for n, v in CATALOG.variables.items() if v.of == "model"}
    assert data["counted"]["total_parameters"] == pytest.approx(1.83e12, rel=0.01)


def test_show_attributes_what_a_user_states_to_the_file(catalog, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(CHIP + 'hbm_capacity = "144 GB"\n')
    _, out, _ = catalog("show", "my-chip", "--catalog", path)
    assert str(path) in next(line for line in out.splitlines() if line.startswith("hbm_capacity"))
    assert f"[{path}] stated in {path} without a source" in out.splitlines()


def test_show_an_unknown_entry_names_the_nearest(catalog):
    refused(catalog("show", "b20"), "'b20'", "'b200'")
    refused(catalog("show", "device.b20"), "no device 'b20'", "'b200'")
    refused(catalog("show", "model.b200"), "no model 'b200'")


def test_show_wants_the_table_where_a_name_is_ambiguous(catalog, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(CHIP.replace("my-chip", "megatron-lm"))
    refused(catalog("show", "megatron-lm", "--catalog", path), "device.megatron-lm or software.megatron-lm")
    status, out, _ = catalog("show", "device.megatron-lm", "--catalog", path)
    assert status == 0
    assert out.startswith("device megatron-lm: My chip")


# ---- check ----------------------------------------------------------------------------------------------------------


def test_check_of_the_built_in_catalog(catalog):
    status, out, _ = catalog("check", "--json")
    assert status == 0
    data = json.loads(out)
    assert sum(held.get("model", 0) for held in data["files"].values()) == len(CATALOG.tables["model"])
    assert data["files"]["references.bib"]["references"] == len(CATALOG.references)
    for warning in data["warnings"]:
        assert "counted" not in warning["sentence"], warning
        assert "peak" not in warning["sentence"], warning
    _, out, _ = catalog("check")
    assert "models_moe.toml: " in out
    assert out.splitlines()[-1].startswith("no errors, ")


def test_check_warns_of_what_is_no_error(catalog, tmp_path):
    (tmp_path / "models.toml").write_text(
        'kind = "model"\n'
        '[big]\nextends = "llama-2-7b"\ntitle = "Big"\nsource = "mine2026"\nlayers = 64\n'
        'learned_positions = { value = 0, year = 2020, confidence = "estimate" }\n'
        '[active]\nextends = "mixtral-8x7b"\ntitle = "Active"\nactive_parameters = 14e9\n'
        '[range]\nextends = "llama-2-7b"\ntitle = "Range"\nparameters = { value = 7e9, low = 6.5e9, high = 7.5e9 }\n'
    )
    (tmp_path / "devices.toml").write_text(CHIP + 'peak_bf16_rate = "2 PFLOP/s"\n')
    (tmp_path / "own.bib").write_text(
        "@misc{mine2026, title={Mine}, author={Me}, year={2026}, url={https://example.org}}\n"
        "@misc{other2026, title={Other}, author={Me}, year={2026}, url={https://example.org}}\n"
    )
    status, out, _ = catalog("check", tmp_path)
    assert status == 0
    lines = out.splitlines()
    assert f"{tmp_path / 'models.toml'}: 3 model" in lines
    assert f"{tmp_path / 'devices.toml'}: 1 device" in lines
    assert f"{tmp_path / 'own.bib'}: 2 references" in lines
    warnings = [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]
    assert len(warnings) == 9
    assert "model active: no source is given for active_parameters" in warnings
    assert "device my-chip: no source is given for peak_bf16_rate" in warnings
    assert not any(w.startswith("model big: no source") for w in warnings)
    assert "model big: 6.738 billion parameters are stated and 13.21 billion counted (+96.1%)" in warnings
    assert "model big: estimates without a range (low, high): learned_positions" in warnings
    assert "model big: estimates of 2020: learned_positions" in warnings
    assert "model active: 14 billion active parameters are stated and 12.88 billion counted (-8.0%)" in warnings
    assert any(w.startswith("device my-chip: the peak 16-bit rate 2000 TFLOP/s differs") for w in warnings)
    assert "reference other2026: no entry cites it" in warnings
    assert lines[-1] == "no errors, 9 warnings"


def test_check_ends_at_the_first_error(catalog, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(CHIP + 'hbm_bandwith = "5 TB/s"\n')
    refused(catalog("check", path), "mine.toml", "[my-chip]", "'hbm_bandwith'", "'hbm_bandwidth'")
    refused(catalog("check", tmp_path / "none.toml"), "none.toml", "cannot be read")


def test_an_entry_is_shown_after_its_table_too(catalog):
    assert catalog("show", "device", "b200") == catalog("show", "device.b200") == catalog("show", "b200")
    refused(catalog("show", "software", "vlm"), "the catalog has no software 'vlm'", "did you mean 'vllm'")
