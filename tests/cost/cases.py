"""Studies and single designs of the workload "manufacturing" for the tests of costs."""

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.engine import replay, resolve
from perfgrid.formulas import registry_of

CATALOG = load_catalog()
REGISTRY = registry_of("manufacturing")
NONE = {"memory_in_package": "none"}
ACTUARY = {"wafer_fill": "perimeter", "edge_exclusion": "5 mm", "saw_street": "0.2 mm"}


def study(outputs, axes, parameters=None, **more):
    return pg.Study.make(
        workload="manufacturing",
        dtype="float64",
        outputs=outputs,
        axes=axes,
        workload_parameters=NONE | (parameters or {}),
        **more,
    )


def cost(output="manufacturing_cost", node="n5", package="organic", **values):
    """One quantity of one design in plain NumPy."""
    given = {v.name: v.default_value for v in CATALOG.variables.values() if v.optional}
    given |= {**CATALOG.entry("node", node).values, **CATALOG.entry("package", package).values, **NONE}
    given |= {"dies": 1.0, "module_area": 400e-6} | values
    labels = {"wafer_fill", "yield_model", "memory_in_package"}
    graph = resolve(REGISTRY, (output,), given, {}, {name: (str(given[name]),) for name in labels})
    return replay(graph, {n: 0.0 if n in labels else given[n] for n in graph.leaves})[output]
