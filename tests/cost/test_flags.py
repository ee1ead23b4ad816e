"""Designs that cannot be made are flagged; wrong input is a one-line error."""

import pytest

import perfgrid as pg

from .cases import CATALOG, study

ONE = {"module_area": ["600 mm^2"], "dies": [1]}


def violated(axes, parameters=None, outputs=("device_cost",), **more):
    result = pg.evaluate(study(list(outputs), axes, parameters, **more))
    return {name for name, v in result.data_vars.items() if "constraint" in v.attrs and not bool((v != 0).all())}


@pytest.mark.parametrize(
    ("axes", "parameters", "flag"),
    [
        ({"module_area": ["900 mm^2"], "dies": [1]}, {}, "die_fits_field"),
        ({"module_area": ["450 mm^2"], "dies": [1]}, {"field_area": "429 mm^2"}, "die_fits_field"),
        ({"module_area": ["0.09 m^2"], "dies": [1]}, {}, "die_fits_wafer"),
        ({"module_area": ["100 mm^2"]}, {}, "dies_exist"),
        ({"dies": [1]}, {}, "dies_exist"),
        ({"module_area": ["3000 mm^2"], "dies": [4], "package": ["cowos-s"]}, {}, "interposer_is_made"),
        ({"module_area": ["0.06 m^2"], "dies": [80], "package": ["cowos-s"]}, {}, "interposer_fits_wafer"),
        ({"module_area": ["600 mm^2"], "dies": [4], "package": ["soic-cowos-s"]}, {}, "stack_has_base"),
        ({**ONE, "hbm_stacks": [4]}, {}, "memory_is_reached"),
        ({**ONE, "io_dies": [1]}, {}, "io_node_is_priced"),
        (
            {**ONE, "io_dies": [1], "io_die_area": ["9 cm^2"], "io_node": ["n6"]},
            {},
            "io_die_fits_field",
        ),
        ({**ONE, "wafer_price": [0]}, {}, "node_is_priced"),
        ({**ONE, "substrate_area_ratio": [0]}, {}, "package_is_known"),
        ({**ONE, "fabricated_cores": [64], "cores": [70]}, {"yield_model": "harvested"}, "cores_fit_dies"),
        ({**ONE, "fabricated_cores": [264], "cores": [70]}, {"yield_model": "harvested"}, "cores_fit_dies"),
    ],
)
def test_what_cannot_be_made_is_flagged(axes, parameters, flag):
    given = {"node": ["n5"], "package": ["organic"], **axes}
    assert flag in violated(given, parameters)
    assert not violated({"node": ["n5"], "package": ["organic"], **ONE})


def test_a_device_without_data_is_flagged():
    assert "dies_exist" in violated({"device": ["gaudi3"], "die_area": [0]}, outputs=["die_cost"])
    assert violated({"device": ["tpu-v5e"]}, outputs=["die_cost"]) == {"node_is_priced"}
    assert "package_is_known" in violated(
        {"device": ["h100-sxm-80gb"], "package": ["unknown"]}, outputs=["package_cost"]
    )


def test_a_node_that_the_catalog_lacks_is_reported_in_a_sentence():
    settings = {"device.h100-sxm-80gb.process_node": "n9"}
    with pytest.raises(
        pg.PerfgridError, match="the node of h100-sxm-80gb \\(process_node = 'n9'\\) is not in the catalog"
    ):
        study(["die_cost"], {"device": ["h100-sxm-80gb"]}, catalog=CATALOG.with_values(settings))


@pytest.mark.parametrize(
    ("axes", "parameters", "said"),
    [
        ({"production_volume": [-1]}, {}, "axes.production_volume must be >= 0"),
        ({"module_area": ["-5 mm^2"]}, {}, "axes.module_area must be >= 0"),
        ({}, {"d2d_overhead": -0.5}, "d2d_overhead must be >= 0"),
        ({"node": ["n4x"]}, {}, "the catalog has no node 'n4x'; did you mean"),
        ({"package": ["cowos"]}, {}, "may be cowos-l, cowos-s, microbump-cowos-s or soic-cowos-s"),
        ({"io_node": ["n1"]}, {}, "axes.io_node: the catalog has no node 'n1'"),
        ({}, {"yield_model": "murfy"}, "; did you mean 'murphy'"),
        ({}, {"core_area_share": 1.5}, "core_area_share must be >= 0 and <= 1, found 1.5"),
    ],
)
def test_bad_input_is_reported_in_a_sentence(axes, parameters, said):
    given = {"node": ["n5"], "package": ["organic"], "dies": [1], "module_area": ["100 mm^2"], **axes}
    with pytest.raises(pg.PerfgridError) as error:
        pg.evaluate(study(["device_cost"], given, parameters))
    assert said in str(error.value)
