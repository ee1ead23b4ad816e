"""Catalog files of the user, look-ups, overrides and units: what is read, and every mistake told by name."""

import math
from typing import Any

import pytest

from perfgrid.analysis.explanation.explain import explain
from perfgrid.catalog import Variable, convert, load_catalog, load_variables
from perfgrid.catalog.references import read_references
from perfgrid.engine.errors import PerfgridError
from perfgrid.study.study import Study
from tests.each import each

CATALOG = load_catalog()

# ---- the user's own files -------------------------------------------------------------------------------------------

MINE = """
kind = "device"
[my-chip]
extends = "h100-sxm-80gb"
title = "My chip"
hbm_bandwidth = { value = "5 TB/s", low = "4 TB/s", high = "6 TB/s", confidence = "estimate", note = "a guess" }
"""


@pytest.fixture
def load(tmp_path):
    """A catalog joined with files of the given texts, in order."""

    def written(*texts, suffix=".toml"):
        paths = []
        for i, text in enumerate(texts):
            path = tmp_path / f"mine{i}{suffix}"
            path.write_text(text, encoding="utf-8")
            paths.append(path)
        return load_catalog(*paths)

    return written


def test_extends_inherits_values_and_sources(load):
    catalog = load(MINE)
    mine, parent = catalog.entry("device", "my-chip"), catalog.entry("device", "h100-sxm-80gb")
    assert mine.values["hbm_bandwidth"] == 5e12
    assert mine.values["cores"] == parent.values["cores"]
    assert mine.sources["cores"] == parent.sources["cores"]
    assert mine.details["matrix_efficiency"] == parent.details["matrix_efficiency"]
    detail = mine.details["hbm_bandwidth"]
    assert (detail.low, detail.high, detail.confidence, detail.note) == (4e12, 6e12, "estimate", "a guess")
    assert "my-chip" not in CATALOG.tables["device"]


def test_what_a_user_states_without_a_source_comes_from_the_file(load, tmp_path):
    stated = 'cores = 3\nclock_frequency = { value = "1 GHz", source = "nvidia2022hopper" }\n'
    catalog = load(MINE + stated, 'kind = "device"\n[their-chip]\nextends = "my-chip"\ntitle = "T"\nl2_size = "9 MB"\n')
    mine, theirs = catalog.entry("device", "my-chip"), catalog.entry("device", "their-chip")
    file = str(tmp_path / "mine0.toml")
    assert mine.sources["hbm_bandwidth"] == mine.sources["cores"] == theirs.sources["cores"] == file
    assert mine.sources["clock_frequency"] == mine.sources["hbm_capacity"] == "nvidia2022hopper"
    assert theirs.sources["l2_size"] == str(tmp_path / "mine1.toml")
    assert catalog.references[file] == f"stated in {file} without a source"
    study = Study.make(
        catalog,
        outputs=["step_time"],
        axes={
            "model": ["llama-2-7b"],
            "device": ["my-chip"],
            "topology": ["rail-optimized"],
            "parallelism": {"devices": [8], "tp": [8], "pp": [1]},
        },
        workload_parameters={"sequence_length": 2048, "global_batch": 8},
    )
    assert study.sources()["device"]["my-chip"]["hbm_bandwidth"] == catalog.references[file]
    found: list[Any] = [explain(study, "step_time", {}).derivation]
    for node in found:
        found += node.below
    assert {n.source for n in found if n.name == "hbm_bandwidth"} == {catalog.references[file]}


@each("name", ["a,b", "a b", "a=b", "a'b", "é", ""])
def test_names_that_no_option_could_hold_are_refused(load, name):
    with pytest.raises(PerfgridError, match="may hold only letters, digits and the signs"):
        load(MINE.replace("[my-chip]", f'["{name}"]'))
    assert "A.b_c+d-1" in load(MINE.replace("[my-chip]", '["A.b_c+d-1"]')).tables["device"]


def test_an_entry_may_extend_its_own_name_in_the_built_in_catalog(load):
    catalog = load('kind = "device"\n[b200]\nextends = "b200"\nhbm_capacity = "192 GiB"\n')
    assert catalog.entry("device", "b200").values["hbm_capacity"] == 192 * 2**30
    assert catalog.entry("device", "gb200").values["cores"] == 152  # what extends it follows
    assert catalog.entry("device", "b200").title == CATALOG.entry("device", "b200").title


def test_vectors_inherit_the_labels_that_are_not_restated(load):
    catalog = load('kind = "topology"\n[mine]\nextends = "rail-optimized"\ntier_oversubscription = { scale_out = 4 }\n')
    assert catalog.entry("topology", "mine").values["tier_oversubscription"] == {"scale_up": 1, "scale_out": 4}


def test_a_folder_with_its_own_references(tmp_path):
    (tmp_path / "mine.toml").write_text(MINE.replace("title =", 'source = "me2026"\ntitle ='), encoding="utf-8")
    (tmp_path / "mine.bib").write_text(
        '@misc{me2026,\n author = "Me and You and Others",\n title = {My {Chip}}, year = 2026,\n url={https://example.org}}'
    )
    catalog = load_catalog(tmp_path)
    assert catalog.references["me2026"] == "Me et al., My Chip, 2026, https://example.org"
    assert catalog.entry("device", "my-chip").sources["hbm_bandwidth"] == "me2026"
    assert catalog.entry("device", "my-chip").sources["cores"] == "nvidia2022hopper"


def test_model_features_default_to_none(load):
    model = load('kind = "model"\n[mine]\nextends = "llama-2-7b"\ntitle = "Mine"\n').entry("model", "mine")
    assert [model.values[q] for q in ("window", "experts", "mtp_layers", "parallel_block")] == [0, 0, 0, False]


@each(
    "text, parts",
    [
        ("kind = 'device'\n[a", ["mine0.toml", "not valid TOML"]),
        ("[a]\ntitle = 'A'", ["mine0.toml", "kind", "model, device, topology, software", "None"]),
        ("kind = 'gpu'\n", ["mine0.toml", "kind", "'gpu'"]),
        ("kind = 'device'\ncores = 3\n", ["mine0.toml", "'cores'", "[cores]"]),
        ("kind = 'device'\n[a]\nextends = 'h100'\n", ["mine0.toml", "[a]", "'h100'", "h100-sxm-80gb"]),
        ("kind = 'device'\n[a]\nextends = ['b200']\n", ["mine0.toml, [a]", "extends", "['b200']"]),
        ("kind = 'device'\n[a]\nextends = 'a'\n", ["mine0.toml", "[a]", "unknown device 'a'"]),
        ("kind = 'device'\n[a]\nextends = 'b'\n[b]\nextends = 'a'\n", ["extends itself", "a -> b -> a"]),
        (MINE + "hbm_bandwith = 3e12", ["[my-chip]", "'hbm_bandwith'", "hbm_bandwidth"]),
        (MINE + "layers = 3", ["[my-chip]", "'layers'", "model", "device"]),
        (MINE + "source = 'nvidia2022hoper'", ["[my-chip]", "'nvidia2022hoper'", "nvidia2022hopper"]),
        (MINE + "cores = { value = 3, source = 'who' }", ["[my-chip].cores", "'who'", "references"]),
        (MINE + "cores = { value = 3, unit = 'm' }", ["[my-chip].cores", "'unit'"]),
        (MINE + "cores = { value = 3, low = 4 }", ["[my-chip].cores", "outside"]),
        (MINE + "cores = { value = 3, confidence = 'sure' }", ["[my-chip].cores", "'sure'", "measured"]),
        (MINE + "cores = { value = 3, year = 'now' }", ["[my-chip].cores", "year", "'now'"]),
        (MINE + "cores = { value = 3, note = 1 }", ["[my-chip].cores", "note", "1"]),
        (MINE + "device_link = { value = { nvlink = 1 }, low = 0 }", ["[my-chip].device_link", "range"]),
        (MINE + "cores = 3.5", ["[my-chip].cores", "whole number", "3.5"]),
        (MINE + "cores = 0", ["[my-chip].cores", "> 0", "0"]),
        (MINE + "cores = nan", ["[my-chip].cores", "finite", "nan"]),
        (MINE + "cores = true", ["[my-chip].cores", "number", "True"]),
        (MINE + "l2_size = 'big'", ["[my-chip].l2_size", "'big'", "number with a unit"]),
        (MINE + "l2_size = '50 TB/s'", ["[my-chip].l2_size", "byte", "TB/s"]),
        (MINE + "l2_size = '50'", ["[my-chip].l2_size", "no unit", "byte"]),
        (MINE + "hbm_efficiency = 1.2", ["[my-chip].hbm_efficiency", "<= 1", "1.2"]),
        (MINE + "device_link = 'nvlink'", ["[my-chip].device_link", "table", "nvlink, infinity_fabric"]),
        (MINE + "device_link = { nvlnk = 1 }", ["[my-chip].device_link", "'nvlnk'", "'nvlink'"]),
        (MINE + "moe = { experts = 8 }", ["[my-chip]", "'moe'"]),
        ("kind = 'device'\n[a]\ntitle = 'A'\n", ["[a]", "lacks", "peak_bf16_rate", "FLOP/s"]),
        ("kind = 'device'\n[a]\ntitle = 'A'\ncores = 3\n", ["[a].cores", "no source"]),
        ("kind = 'device'\n[a]\ntitle = 3\n", ["[a]", "title", "3"]),
        ("kind = 'model'\n[x.1-8b]\ntitle = 'A'\n", ["[x]", "'1-8b'", '["x.1-8b"]']),
        ("kind = 'model'\n[a]\nextends = 'llama-2-7b'\nmoe = 3\n", ["[a]", "moe", "table", "3"]),
        ("kind = 'model'\n[a]\nextends = 'llama-2-7b'\n[a.moe]\nexperts = 8\n", ["[a]", "moe", "experts_per_token"]),
        ("kind = 'model'\n[a]\nextends = 'llama-2-7b'\nexperts = 8\n", ["[a]", "experts", "block moe"]),
        ("kind = 'model'\n[a]\nextends = 'llama-2-7b'\n[a.moe]\nlayers = 8\n", ["[a]", "layers", "outside"]),
        ("kind = 'model'\n[a]\nextends = 'llama-2-7b'\ngated_ffn = 1\n", ["[a].gated_ffn", "true or false", "1"]),
        (
            "kind = 'topology'\n[a]\ntitle = 'A'\nsource = 'nccl2026tuning'\ntier_hops = { scale_up = 2 }\n",
            ["[a].tier_hops", "scale_out"],
        ),
    ],
)
def test_mistakes_in_files(load, text, parts):
    with pytest.raises(PerfgridError) as caught:
        load(text)
    sentence = str(caught.value)
    assert "\n" not in sentence.split("TOML:")[0]
    for part in parts:
        assert part in sentence, sentence


def test_an_entry_defined_twice(load):
    with pytest.raises(PerfgridError, match=r"mine1\.toml: device 'my-chip' is already defined in .*mine0\.toml"):
        load(MINE, MINE)


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path / "none.bib"):
        with pytest.raises(PerfgridError, match=r"none\.\w+: cannot be read"):
            load_catalog(path)
    with pytest.raises(PerfgridError, match=r"holds no \.toml or \.bib file"):
        load_catalog(tmp_path)


def test_mistakes_in_a_bibliography(tmp_path):
    path = tmp_path / "mine.bib"
    path.write_text("@misc{a, title = {A}}\n@misc{a, title = {B}}")
    with pytest.raises(PerfgridError, match="'a' is defined twice"):
        read_references(path)
    path.write_text("@misc{a, title = {A}")
    assert read_references(path) == {"a": "A"}
    path.write_text("@misc{a, title = {A")
    with pytest.raises(PerfgridError, match="never closed"):
        read_references(path)


# ---- looking up and overriding --------------------------------------------------------------------------------------


@each(
    "kind, name, parts",
    [
        ("device", "h100", ["device", "'h100'", "h100-sxm-80gb"]),
        ("device", "b20", ["'b20'", "'b200'"]),
        ("model", "llama-3-405b", ["'llama-3-405b'", "'llama-3.1-405b'"]),
        ("topology", "xyz", ["'xyz'", "rail-optimized", "ici-ring"]),
        ("devices", "b200", ["'devices'", "'device'"]),
    ],
)
def test_unknown_entries_are_reported_with_the_nearest(kind, name, parts):
    with pytest.raises(PerfgridError) as caught:
        CATALOG.entry(kind, name)
    for part in parts:
        assert part in str(caught.value)


@each(
    "key, value, expected",
    [
        ("device.b200.hbm_bandwidth", 10e12, 10e12),
        ("device.b200.hbm_bandwidth", "10e12", 10e12),
        ("device.b200.hbm_bandwidth", "10 TB/s", 10e12),
        ("model.llama-3.1-405b.layers", "128", 128),
        ("model.llama-3.1-405b.tied_embeddings", "true", True),
        ("topology.fat-tree-2to1.tier_oversubscription.scale_out", 3, {"scale_up": 1, "scale_out": 3}),
        ("topology.fat-tree-2to1.tier_hop_latency.scale_out", "1 us", {"scale_up": 250e-9, "scale_out": 1e-6}),
        ("topology.rail-optimized.tier_hops", {"scale_out": 6}, {"scale_up": 2, "scale_out": 6}),
    ],
)
def test_single_values_are_replaced(key, value, expected):
    kind, _, rest = key.partition(".")
    changed = CATALOG.with_values({key: value})
    name = next(n for n in CATALOG.tables[kind] if rest.startswith(n + "."))
    quantity = rest.removeprefix(name + ".").split(".")[0]
    assert changed.entry(kind, name).values[quantity] == expected
    assert changed.entry(kind, name).sources[quantity] in changed.references
    assert CATALOG.entry(kind, name).values[quantity] != expected  # the original is untouched


@each(
    "key, value, parts",
    [
        ("gpu.b200.hbm_bandwidth", 1, ["gpu.b200.hbm_bandwidth", "'gpu'", "device"]),
        ("device.b20.hbm_bandwidth", 1, ["'b20'", "'b200'"]),
        ("device.b200.hbm_bandwith", 1, ["'hbm_bandwith'", "'hbm_bandwidth'"]),
        ("device.b200.layers", 1, ["'layers'", "model"]),
        ("device.b200.hbm_bandwidth", "10 TFLOP/s", ["10 TFLOP/s", "byte/s"]),
        ("device.b200.hbm_bandwidth", "-1", ["> 0", "-1"]),
        ("device.b200.hbm_bandwidth", "inf", ["finite"]),
        ("device.b200.hbm_bandwidth", "nan", ["finite"]),
        ("model.gpt3-175b.gated_ffn", 1, ["true or false", "1"]),
        ("topology.rail-optimized.tier_hops.scale_ot", 1, ["'scale_ot'", "'scale_out'"]),
        ("device", 1, ["device"]),
    ],
)
def test_mistakes_in_overrides(key, value, parts):
    with pytest.raises(PerfgridError) as caught:
        CATALOG.with_values({key: value})
    for part in parts:
        assert part in str(caught.value)


# ---- values and units -----------------------------------------------------------------------------------------------


@each(
    "unit, text, expected",
    [
        ("byte/s", "3.35 TB/s", 3.35e12),
        ("byte/s", "400 Gbit/s", 50e9),
        ("byte", "80 GiB", 80 * 2**30),
        ("byte", "80 GB", 80e9),
        ("FLOP/s", "989.4 TFLOP/s", 989.4e12),
        ("FLOP/s", "1 PFLOPS", 1e15),
        ("s", "3 us", 3e-6),
        ("s", "2.5 µs", 2.5e-6),
        ("s", "936.25 ns", 936.25e-9),
        ("s", "2 hours", 7200),
        ("W", "700 W", 700),
        ("W", "1.2 kW", 1200),
        ("Hz", "1.83 GHz", 1.83e9),
        ("USD", "2 kUSD", 2000),
        ("1", "80 %", 0.8),
        ("1", "15e12 tokens", 15e12),
        ("1", "3", 3),
    ],
)
def test_units(unit, text, expected):
    variable = Variable(name="x", unit=unit, meaning="x", of="device")
    assert convert(variable, text, "here") == expected


@each(
    "unit, text",
    [
        ("byte/s", "3 TFLOP/s"),
        ("FLOP/s", "3 GHz"),
        ("byte", "3 Gbit/s"),
        ("1", "3 GB"),
        ("s", "3"),
        ("s", "3 parsecs"),
        ("s", ""),
        ("s", "3 s +"),
        ("USD", "3 byte"),
    ],
)
def test_wrong_units(unit, text):
    variable = Variable(name="x", unit=unit, meaning="x", of="device")
    with pytest.raises(PerfgridError) as caught:
        convert(variable, text, "study.toml, x")
    assert "study.toml, x" in str(caught.value)
    assert repr(text) in str(caught.value)


@each("value", [0, -1, math.inf, -math.inf, math.nan, True, None, [1], {"a": 1}])
def test_numbers_are_positive_and_finite_unless_said_otherwise(value):
    with pytest.raises(PerfgridError, match="here"):
        convert(Variable(name="x", unit="1", meaning="x", of="device"), value, "here")


@each(
    "options, good, bad",
    [
        ({"minimum": 0}, [0, 5], [-1e-9]),
        ({"minimum": 1, "maximum": 2}, [1, 2], [0.9, 2.1]),
        ({"above": 3}, [3.1], [3]),
        ({"kind": "integer"}, [1, 2.0, "3"], [1.5, "1.5"]),
        ({"kind": "flag"}, [True, False], [1, 0, "true", None]),
        ({"kind": "label"}, ["bf16"], ["", 3, True]),
    ],
)
def test_kinds_and_bounds(options, good, bad):
    variable = Variable(name="x", unit="1", meaning="x", of="workload", **options)
    for value in good:
        assert convert(variable, value, "here") == (float(value) if variable.kind in ("number", "integer") else value)
    for value in bad:
        with pytest.raises(PerfgridError, match="here"):
            convert(variable, value, "here")


def test_variables_have_unit_and_meaning_and_a_legal_default():
    for variable in load_variables().values():
        assert not variable.meaning[0].islower()
        assert not variable.meaning.endswith(".")
        if variable.default is not None and variable.axis is None and variable.block is None:
            assert convert(variable, variable.default, variable.name) == variable.default_value


def test_only_continuous_quantities_are_differentiable():
    for variable in load_variables().values():
        if variable.differentiable:
            assert variable.kind == "number"
            assert variable.of not in ("model", "parallelism", "computed")


def test_a_code_is_a_word_in_files_and_a_number_inside(load):
    variable = load_variables()["tier_kind"]
    catalog = load("""kind = "topology"
[mine]
extends = "rail-optimized"
library = "ideal"
tier_kind = { scale_up = "torus" }
scale_up_sides = { first = 4, second = 2 }
""")
    values = catalog.entry("topology", "mine").values
    assert values["tier_kind"] == {
        "scale_up": variable.codes.index("torus"),
        "scale_out": variable.codes.index("rail"),
    }
    assert variable.word(values["tier_kind"]) == {"scale_up": "torus", "scale_out": "rail"}
    assert values["scale_up_sides"] == {"first": 4, "second": 2, "third": 0, "fourth": 0}
    changed = catalog.with_values({"topology.mine.tier_kind.scale_out": "dragonfly"}).entry("topology", "mine").values
    assert variable.word(changed["tier_kind"]) == {"scale_up": "torus", "scale_out": "dragonfly"}
    with pytest.raises(PerfgridError, match=r"\[mine\]\.tier_kind\.scale_up must be one of switch, .*'tours'.*'torus'"):
        load('kind = "topology"\n[mine]\nextends = "rails"\ntier_kind = { scale_up = "tours" }\n')
    with pytest.raises(PerfgridError, match=r"tier_kind\.scale_up must be one of .*found 3"):
        load('kind = "topology"\n[mine]\nextends = "rails"\ntier_kind = { scale_up = 3 }\n')


@each(
    "stated, message",
    [
        ({"kind": "code"}, "lists its codes"),
        ({"codes": ["a"]}, "lists its codes"),
        ({"kind": "code", "codes": ["a", "b"], "optional": True, "default": "c"}, "none of its codes"),
    ],
)
def test_a_code_of_the_glossary_lists_its_words(stated, message):
    with pytest.raises(ValueError, match=message):
        Variable(name="x", unit="1", meaning="X", of="workload", **stated)
