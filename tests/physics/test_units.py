"""Units of every formula, followed through the whole graph; and what every formula must state."""

from perfgrid.catalog import load_catalog
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Space
from tests.units import check

from .cases import point, step_registry


def test_every_formula_keeps_its_units():
    registry = step_registry()
    problems = []
    named = ("precision", "recompute", "schedule", "library", "rank_order", "cp_method")
    for labels in (
        ("bf16", "none", "1f1b", "nccl", "tp-cp-dp-pp", "ring"),
        ("fp8", "full", "gpipe", "ideal", "tp-cp-pp-dp", "all_gather"),
        ("bf16", "selective", "1f1b", "nccl", "tp-cp-dp-pp", "ulysses"),
        ("bf16", "none", "zb_h1", "ideal", "tp-cp-dp-pp", "hybrid"),
        *(("bf16", "selective", s, "nccl", "tp-cp-dp-pp", "ring") for s in ("zb_v", "dualpipe", "dualpipe_v")),
    ):
        space = Space((), {**point(), **dict(zip(named, labels, strict=True))})
        names = [n for n in registry.names() if registry.get(n).unit != "" and not _other_label(registry, n, labels)]
        units = {v.name: v.unit for v in load_catalog().variables.values()}
        problems += check(Plan(registry, space, names), units)
    assert not problems, "\n".join(sorted(set(problems)))


def _other_label(registry, name, labels):
    """Alternatives of a label that the space does not hold are left out of its plan."""
    member = registry.formulas.get(name)
    return member is not None and member.by is not None and member.label not in labels


def test_every_source_is_in_the_bibliography():
    references = load_catalog().references
    for formula in step_registry().formulas.values():
        for source in formula.source.split(", "):
            assert source in references, f"{formula.name}: {source}"


def test_every_given_quantity_is_in_the_glossary():
    from .cases import graph

    variables = load_catalog().variables
    assert set(graph().leaves) <= set(variables)
