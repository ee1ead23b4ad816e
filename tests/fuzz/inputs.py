"""Catalogs, configurations of models, records of measurements, and results whose bytes are damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

from hypothesis import strategies as st

from tests.huggingface_configs import CONFIGS as WITHOUT_MIXERS
from tests.huggingface_hybrids import HYBRIDS

from .program import PRECIOUS
from .values import hostile, json_text, mutated, toml

CONFIGS = WITHOUT_MIXERS | HYBRIDS
DEVICE = {
    "kind": "device",
    "own": {"extends": "h100-sxm-80gb", "title": "Own", "source": "none", "hbm_bandwidth": "4 TB/s"},
}
MODEL = {
    "kind": "model",
    "own": {
        "title": "\x1b[31mOwn",
        "source": "none",
        "layers": 2,
        "hidden_size": 256,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 64,
        "ffn_size": 512,
        "vocabulary": 1000,
        "ffn_projections": 3,
    },
}
CHAIN = {"kind": "device"} | {
    f"d{i}": {"extends": f"d{i + 1}" if i < 2999 else "h100-sxm-80gb"} for i in range(3000)
}  # each extends the next
RECORD = {
    "id": "own-1",
    "kind": "training",
    "quantity": "step_time",
    "value": 1.5,
    "source": {"title": "\x1b]0;x\x07", "url": "https://example.org", "where": "table 1", "retrieved": "2025-01-01"},
    "model": {"name": "llama-2-7b"},
    "device": "h100-sxm-80gb",
    "devices": 8,
}

catalogs = st.one_of(
    st.sampled_from([DEVICE, MODEL, CHAIN]).map(toml),
    st.sampled_from([DEVICE, MODEL]).flatmap(mutated).map(toml),
    hostile.map(lambda value: toml({"kind": "device", "own": value})),
).map(str.encode)


configs = st.one_of(
    st.sampled_from(sorted(CONFIGS)).map(lambda name: json_text(CONFIGS[name])),
    st.sampled_from(sorted(CONFIGS)).flatmap(lambda name: mutated(CONFIGS[name])).map(json_text),
    hostile.map(json_text),
    st.sampled_from(["[" * 100_000, '{"a":' * 100_000, "1" * 5000, "", "\ufeff{}"]),
).map(str.encode)
records = st.lists(
    st.one_of(
        st.just(json_text(RECORD)),
        mutated(RECORD).map(json_text),
        hostile.map(json_text),
        st.sampled_from(["[" * 100_000, "{}", "null", "1" * 5000, "", "\x1b[31m"]),
    ),
    min_size=1,
    max_size=3,
).map(lambda found: "\n".join(found).encode())

OWN = """import perfgrid as pg
@pg.formula(unit="USD", source="ours")
def own_price({argument}):
    '''Price of our own.'''
    return {value}
@pg.constraint(kind="exceeds", reason="\x1b[31mdear", source="ours", about="own_price")
def own_limit(own_price):
    '''Whether it is cheap.'''
    return own_price < 10.0
"""  # the arguments are quantities of some workloads, of none, and no legal name
formulas = st.one_of(
    st.builds(
        lambda argument, value: OWN.format(argument=argument, value=value.format(argument)),
        st.sampled_from(["step_time", "die_cost", "time_per_output_token", "collective_time", "nothing", "own_price"]),
        st.sampled_from(["2 * {}", "{}", "2 * {0} if {0} > 1 else 0", "{}.nothing", "'text'", "None", "1 / 0", "[{}]"]),
    ),
    st.sampled_from(
        ["", "x = 1\n", "def f(:", "raise OSError('\x1b[31m')", "import sys; sys.exit(0)", "x\0", "(" * 9999]
    ),
).map(str.encode)
damages = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),  # which file of a store
        st.sampled_from(["flip", "flip", "cut", "empty", "insert", "remove", "replace", "json"]),
        st.floats(0, 1, exclude_max=True),  # where in it
        st.binary(min_size=1, max_size=8),
    ),
    max_size=2,
)
PLACES = ("file", "folder", "store", "store and more")  # what is where a result is to be


def occupy(path: Path, kind: str, store: Path) -> None:
    """Put something in the place of a result: a file, a folder with a file of the user's, a store of perfgrid's."""
    if kind.startswith("store"):
        shutil.copytree(store, path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"precious")
    if kind in ("folder", "store and more"):
        (path / PRECIOUS).write_bytes(b"precious")


HEADERS = (b"{}", b"[]", b"null", b'"x"', b"[" * 50_000, b'{"zarr_format": 3}', b'{"format": 1}', b"\x1b[31m")


def damage(path: Path, kinds: list[tuple[float, str, float, bytes]]) -> None:
    """Damage the bytes of a file, or of files of a store."""
    for which, kind, where, more in kinds:
        held = sorted(p for p in (path, *path.rglob("*")) if p.is_file())
        if not held:
            return
        target = held[int(which * len(held))]
        data = bytearray(target.read_bytes())
        place = int(where * len(data))
        if kind == "flip" and data:
            data[place] ^= more[0] or 1
        elif kind == "cut":
            del data[place:]
        elif kind == "insert":
            data[place:place] = more
        elif kind == "replace":
            data[place : place + len(more)] = more
        elif kind == "json" and target.suffix == ".json":
            data = bytearray(HEADERS[more[0] % len(HEADERS)])
        elif kind == "empty":
            data = bytearray()
        if kind == "remove":
            target.unlink()
        else:
            target.write_bytes(bytes(data))
