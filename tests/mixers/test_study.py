"""The workload "sequence_mixer": units, sources, gradients, and the study of the repository."""

from pathlib import Path

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.engine.grid.plan import Plan
from perfgrid.formulas import registry_of
from perfgrid.formulas.mixer_kinds import RECURRENT, SOFTMAX
from tests.units import check

from .cases import LATENT, graph

STUDY = Path(__file__).parents[2] / "studies" / "sequence_mixers.toml"
KINDS = (*RECURRENT, *SOFTMAX)


def study(mixers=KINDS, outputs=("mixer_forward_time",), **more):
    given = {"mixer_heads": 32, "mixer_key_heads": 8, "mixer_key_dim": 128, "mixer_value_dim": 64, "tp": 2}
    return pg.Study.make(
        workload="sequence_mixer",
        outputs=list(outputs),
        dtype="float64",
        axes={"device": ["h100-sxm-80gb"], "mixer": list(mixers), "sequence_length": [1, 1000, 65536], **more},
        workload_parameters={"tp": given.pop("tp")},
        overrides=LATENT | given | {"hidden_size": 4096, "convolution_length": 4, "gate_rank": 128},
    )


@pytest.mark.parametrize("mixer", KINDS)
def test_units_and_sources(mixer):
    """Of every formula that the kind uses."""
    registry, catalog = registry_of("sequence_mixer"), load_catalog()
    units = {v.name: v.unit for v in catalog.variables.values()}
    made = study([mixer])
    names = [name for name in graph(mixer, "bf16").nodes if name in registry.names()]
    plan = Plan(registry, made.space, [n for n in names if registry.get(n).unit])
    assert not check(plan, units)
    own = [f for n, f in registry.formulas.items() if ".mixers." in registry.modules[n]]
    assert all(f.source in catalog.references for f in own)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("output", ["mixer_forward_time", "mixer_backward_time", "mixer_decode_time", "mixer_memory"])
def test_values_and_gradients_are_finite(output, fused):
    """Without convolution, gates of low rank or scales, too."""
    bare = {"mixer_fused": [fused], "of": {"zip": {"convolution_length": [0, 4], "gate_rank": [0, 128]}}}
    made = study(outputs=[output])
    made = pg.Study.make(
        workload="sequence_mixer",
        outputs=[output],
        dtype="float64",
        axes=made.file.axes | bare,
        workload_parameters=made.file.workload_parameters,
        overrides={k: v for k, v in made.file.overrides.items() if k not in bare["of"]["zip"]},
    )
    result = pg.sensitivity(made, dtype="float64")
    values = pg.evaluate(made)[output].values
    assert np.isfinite(values).all()
    assert (values > 0).all() or output == "mixer_memory"
    assert np.isfinite(result[f"{output}_elasticity"].values).all()


def test_the_study_of_the_repository():
    """The recurrent mixers decode in the same time at every context; which one is the fastest changes with it."""
    made = pg.load_study(STUDY)
    ds = pg.evaluate(made).squeeze("device")
    kinds = ds.mixer.values.tolist()
    for label, kind in zip(ds.layer.values, kinds, strict=True):
        decode, memory = (ds[name].sel(layer=label) for name in ("mixer_decode_time", "mixer_memory"))
        assert (decode.diff("sequence_length") >= 0).all()
        flat = bool((decode == decode[0]).all()) and bool((memory == memory[0]).all())
        assert flat == (kind in RECURRENT)
    found = pg.best(made).layer.values.ravel().tolist()
    assert found[0] == "full"
    assert found[-1] in ("Mamba-2", "lightning", "gated delta net", "Kimi delta")
