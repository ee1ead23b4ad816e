"""``perfgrid read-job --formats``: what is known of the keys of every format."""

from __future__ import annotations

from perfgrid.jobs.formats import formats
from perfgrid.jobs.kinds import EFFECT, KINDS, NO_EFFECT, NOT_MODELLED, UNKNOWN, counted
from perfgrid.printing.console import out, print_json
from perfgrid.printing.tables import print_table

MEANINGS = {
    EFFECT: "states a quantity",
    NO_EFFECT: "changes no time, memory or cost; its table says why",
    NOT_MODELLED: "listed by name, or stops the reader where it changes much",
    UNKNOWN: "stops the reader if its name could matter, else a warning",
}


def told(count: int | None) -> str:
    """A count, or that none is kept."""
    return "-" if count is None else str(count)


def show_formats(as_json: bool) -> None:
    """Print how many keys of each format are known with effect, without effect, not modelled and unknown."""
    found = {name: (form, counted(form)) for name, form in formats().items()}
    if as_json:
        rows = {
            name: {**count.kinds, "unknown that stop": count.stopping, "of": count.of, "strict": form.strict}
            for name, (form, count) in found.items()
        }
        print_json(rows)
        return
    table = [
        (name, *(told(count.kinds[kind]) for kind in KINDS), told(count.stopping), count.of)
        for name, (_, count) in found.items()
    ]
    headers = ("format", *KINDS, "of these stop", "of")
    print_table(headers, table, right=headers[2:-1], names=False)
    out.print()
    for kind, meaning in MEANINGS.items():
        out.print(f"{kind}: {meaning}")
