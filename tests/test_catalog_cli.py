"""The commands of the catalog as a user runs them: list, show and check."""

import json
import re
from datetime import date

import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.catalog.writing import entry_text
from tests.each import each
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
    rows = {line.split()[0]: line for line in out.splitlines() if line[:1].strip()}  # a long title goes on below
    assert re.split(" {2,}", rows["model"])[1:] == [
        "total parameters [billion]",
        "parameters per token [billion]",
        "title",
    ]
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
    assert "{ nvidia = 1, amd = 1, google = 1, intel = 0 }" in lines["supported_vendors"]
    lines = {line.split()[0]: line for line in catalog("show", "rail-optimized")[1].splitlines() if line}
    assert "{ scale_up = 1, scale_out = 1 }" in lines["tier_oversubscription"]


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
    assert lines[:3] == ['kind = "device"', "", "[h100-sxm-80gb]"]
    assert any(line.startswith("hbm_bandwidth") and "3.35 TB/s" in line for line in lines)
    assert any(line.startswith("device_link") and "nvlink" in line for line in lines)
    shown = next(line for line in lines if line.startswith("matrix_efficiency"))
    detail = CATALOG.entry("device", "h100-sxm-80gb").details["matrix_efficiency"]
    for part in (f"{detail.low:.4g}", f"{detail.high:.4g}", detail.confidence or "", detail.note or ""):
        assert part in shown
    for key in set(CATALOG.entry("device", "h100-sxm-80gb").sources.values()):
        assert f"# [{key}] {CATALOG.references[key]}" in lines


def test_show_a_model_with_its_counts(catalog):
    _, out, _ = catalog("show", "kimi-k2")
    assert "# counted total_parameters = 1,026,408,209,408" in out
    assert "# counted key_value_cache_width = 576" in out


def shown(catalog, entry, *options):
    """What ``show`` prints of an entry."""
    status, out, _ = catalog("show", f"{entry.kind}.{entry.name}", *options)
    assert status == 0
    return out


def pasted(folder, texts):
    """The catalog in which texts of entries stand in one file for each table."""
    for kind, held in texts.items():
        line = f'kind = "{kind}"\n'
        assert all(line in text for text in held)
        (folder / f"{kind}.toml").write_text(line + "".join(text.replace(line, "") for text in held))
    return load_catalog(folder)


def test_every_entry_is_shown_as_a_file_that_states_the_same(catalog, tmp_path):
    texts = {}
    for kind, (first, *rest) in {kind: table.values() for kind, table in CATALOG.tables.items()}.items():
        texts[kind] = [shown(catalog, first)]
        texts[kind] += [entry_text(entry, CATALOG.variables, CATALOG.references) for entry in rest]
    assert pasted(tmp_path, texts).tables == CATALOG.tables


def test_an_entry_without_sources_keeps_that_it_has_none(catalog, tmp_path):
    path, folder = tmp_path / "mine.toml", tmp_path / "copy"
    path.write_text(
        CHIP.replace('"My chip"', '"My \\u001b[31m\\\\ \\"chip\\"\\u2028\\u007f"')
        + 'hbm_capacity = "144 GB"\nhbm_bandwidth = { value = "5 TB/s", low = 4.3e12, high = "6 TB/s", year = 2026, '
        'confidence = "estimate", note = "a \\"guess\\"" }\n'
    )
    folder.mkdir()
    entry = load_catalog(path).entry("device", "my-chip")
    copy = pasted(folder, {"device": [shown(catalog, entry, "--catalog", path)]}).entry("device", "my-chip")
    assert (copy.title, copy.values, copy.details) == (entry.title, entry.values, entry.details)
    assert copy.sources == {q: key.replace(str(path), str(folder / "device.toml")) for q, key in entry.sources.items()}
    assert entry.sources["hbm_capacity"] == str(path)


def test_none_is_no_source_of_the_built_in_catalog():
    assert all("none" not in entry.sources.values() for t in CATALOG.tables.values() for entry in t.values())
    assert "none" not in CATALOG.references


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
    assert 'hbm_capacity = { value = "144 GB", source = "none" }' in out.splitlines()
    assert f"# [{path}] stated in {path} without a source" in out.splitlines()


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
    assert out.startswith('kind = "device"\n\n[megatron-lm]\ntitle = "My chip"\n')


# ---- new ------------------------------------------------------------------------------------------------------------


def test_new_writes_an_entry_that_a_study_uses(catalog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    estimate = '{ value = "1.2 PFLOP/s", low = "1 PFLOP/s", high = "1.3 PFLOP/s", confidence = "estimate" }'
    values = ("--set", "hbm_bandwidth=5 TB/s", "--set", f"peak_bf16_rate={estimate}", "--set", "device_link.pcie=1")
    like = ("new", "device", "my-chip", "--like", "h100-sxm-80gb")
    status, out, _ = catalog(*like, *values, "-o", "my.toml")
    assert (status, out) == (
        0,
        'saved my.toml (my-chip); use it with --catalog my.toml, or in a study with catalog = ["my.toml"]\n',
    )
    base, found = CATALOG.entry("device", "h100-sxm-80gb"), load_catalog("my.toml").entry("device", "my-chip")
    changed = {"hbm_bandwidth", "peak_bf16_rate", "device_link"}
    assert {q for q in base.values if found.values[q] != base.values[q]} == changed
    assert {q for q, source in found.sources.items() if source == "my.toml"} == changed
    assert all(found.sources[q] == base.sources[q] for q in base.values if q not in changed)
    assert all(found.details[q] == detail for q, detail in base.details.items() if q not in changed)
    assert found.details["peak_bf16_rate"].high == 1.3e15
    data = json.loads(catalog(*like, *values, "--json")[1])
    assert (data["name"], data["stated"]["device_link"]) == ("my-chip", {"pcie": 1})
    text = (tmp_path / "my.toml").read_text()
    assert catalog(*like, *values)[1] == text.replace('["my.toml"]', '["my-chip.toml"]')
    (tmp_path / "my.toml").write_text(text.replace('# hbm_capacity = "80 GiB"', 'hbm_capacity = "96 GiB"'))
    outputs, axes = ["hbm_capacity"], {"device": ["my-chip"]}
    study = pg.Study.make(workload="manufacturing", outputs=outputs, axes=axes, catalog="my.toml")
    assert pg.evaluate(study).hbm_capacity.item() == 96 * 2**30


@each("kind", CATALOG.tables)
def test_new_offers_every_value_of_the_other_as_a_comment(catalog, tmp_path, kind):
    base = next(iter(CATALOG.tables[kind].values()))
    out = catalog("new", kind, "own", "--like", base.name)[1]
    path = tmp_path / "own.toml"
    path.write_text(out)
    found = load_catalog(path).entry(kind, "own")
    assert (found.values, found.sources, found.details) == (base.values, base.sources, base.details)
    head, _, rest = out.partition("[own]\n")
    values = rest.replace("# ", "").replace(f'extends = "{base.name}"\n', 'source = "none"\n')
    path.write_text(head + "[own]\n" + values)  # every comment becomes a value
    assert load_catalog(path).entry(kind, "own").values == base.values


def test_new_extends_entries_of_other_files_and_blocks(catalog, tmp_path):
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text(CHIP)
    _, out, _ = catalog("new", "device", "x", "--like", "my-chip", "--catalog", first, "-o", second)
    assert f'catalog = ["{first}", "{second}"]' in out
    assert load_catalog(first, second).entry("device", "x").values["cores"] == 132
    options = ("--set", "experts=16", "--set", "moe.experts_per_token=4", "--set", "title=Sixteen experts")
    catalog("new", "model", "wide", "--like", "mixtral-8x7b", *options, "-o", second, "--overwrite")
    found = load_catalog(second).entry("model", "wide")
    assert (found.title, found.values["experts"], found.values["experts_per_token"]) == ("Sixteen experts", 16, 4)


def test_new_refuses_in_one_line_and_writes_nothing(catalog, tmp_path):
    there = tmp_path / "there.toml"
    there.write_text("mine")
    like = ("--like", "b200")
    refused(catalog("new", "device", "b200", *like), "has a device 'b200' already")
    refused(catalog("new", "device", "x", "--like", "b20"), "no device 'b20'", "'b200'")
    refused(catalog("new", "chair", "x", *like), "no table 'chair'")
    refused(catalog("new", "device", "x/y", *like), "a name may hold only letters")
    refused(catalog("new", "device", "x", *like, "-o", there), "exists; give --overwrite")
    refused(catalog("new", "device", "x", *like, "-o", tmp_path / "x.txt"), "must end in .toml")
    for setting, parts in {
        "hbm_bandwith=5": ("--set, [x]: unknown quantity 'hbm_bandwith'", "'hbm_bandwidth'"),
        "hbm_bandwidth=5 W": ("[x].hbm_bandwidth: '5 W' has the unit W, expected byte/s",),
        "hbm_bandwidth={ value = 4e12, low = 5e12 }": ("lies outside its range",),
        "device_link.nvlnk=1": ("unknown label 'nvlnk'", "'nvlink'"),
        "experts=16": ("'experts' is stated by a model",),
        "extends=b300": ("must read quantity=value",),
        "a.b.c=1": ("must read quantity=value",),
        "cores": ("must read key=value",),
        "source=nobody2020": ("'nobody2020' is not in the bibliography",),
    }.items():
        refused(catalog("new", "device", "x", *like, "--set", setting, "-o", tmp_path / "x.toml"), *parts)
    refused(catalog("new", "device", "x", *like, "--set", "cores=1", "--set", "cores.a=1"), "cores is stated twice")
    refused(catalog("new", "model", "x", "--like", "llama-2-7b", "--set", "experts=4"), "block moe lacks")
    assert [path.name for path in tmp_path.iterdir()] == ["there.toml"]
    assert there.read_text() == "mine"


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


def test_check_reports_values_that_have_aged(catalog, tmp_path):
    """By kind of quantity; without a year of its own a value has that of its own source, not of its entry's."""
    this_year = date.today().year
    old, fair = (f'year = {this_year - age}, source = "mine2012", confidence' for age in (3, 2))
    (tmp_path / "own.bib").write_text("@misc{mine2012, title={Mine}, author={Me}, year={2012}, url={https://a.org}}\n")
    (tmp_path / "a.toml").write_text(
        'kind = "device"\n[a]\nextends = "h100-sxm-80gb"\ntitle = "A"\nsource = "mine2012"\n'
        f'purchase_price = {{ value = "2 USD", low = "1 USD", high = "3 USD", {old} = "estimate" }}\n'
        f'hbm_bandwidth = {{ value = "5 TB/s", low = "4 TB/s", high = "6 TB/s", {old} = "estimate" }}\n'
        'clock_frequency = { value = "1 GHz", source = "mine2012", confidence = "datasheet" }\n'
        'cores = { value = 9, low = 8, high = 10, source = "mine2012", confidence = "estimate" }\n'
        'l2_size = { value = "9 MiB", low = "8 MiB", high = "10 MiB", confidence = "estimate" }\n'
        '[b]\nextends = "a"\ntitle = "B"\n'
        f'purchase_price = {{ value = "2 USD", low = "1 USD", high = "3 USD", {fair} = "estimate" }}\n'
    )
    found = json.loads(catalog("check", tmp_path, "--json")[1])["old"]
    assert [(o["table"], o["entry"], o["quantity"], o["year"]) for o in found] == [
        ("device", "a", "purchase_price", this_year - 3),
        ("device", "a", "cores", 2012),
    ]
    assert [o["reason"].partition(", ")[2] for o in found] == ["prices change", "newer sources may exist"]


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
    assert "model learned_positions: over 5 years old, newer sources may exist: big (2020)" in warnings
    assert "model active: 14 billion active parameters are stated and 12.88 billion counted (-8.0%)" in warnings
    assert any(w.startswith("device my-chip: the peak 16-bit rate 2000 TFLOP/s differs") for w in warnings)
    assert "reference other2026: no entry cites it" in warnings
    assert lines[-1] == "no errors, 9 warnings"


def test_check_remarks_on_memory_in_gigabytes(catalog, tmp_path):
    (tmp_path / "mine.toml").write_text(CHIP + 'hbm_capacity = "141 GB"\n')
    remark = "hbm_capacity is 141 GB = 131.3 GiB: where a data sheet says 141 GB, state"
    assert remark in " ".join(catalog("check", tmp_path)[1].split())
    (tmp_path / "mine.toml").write_text(CHIP + 'hbm_capacity = "141 GiB"\n')
    assert "data sheet" not in catalog("check", tmp_path)[1]


def test_check_ends_at_the_first_error(catalog, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(CHIP + 'hbm_bandwith = "5 TB/s"\n')
    refused(catalog("check", path), "mine.toml", "[my-chip]", "'hbm_bandwith'", "'hbm_bandwidth'")
    refused(catalog("check", tmp_path / "none.toml"), "none.toml", "cannot be read")


def test_an_entry_is_shown_after_its_table_too(catalog):
    assert catalog("show", "device", "b200") == catalog("show", "device.b200") == catalog("show", "b200")
    refused(catalog("show", "software", "vlm"), "the catalog has no software 'vlm'", "did you mean 'vllm'")
