"""Compiled functions of earlier runs, so that a study which was evaluated before is neither traced nor compiled again.

JAX's own cache is asked after tracing and lowering, which take longer than all the rest of a small study. Here a
function is known by what it is made of: the text of the package, the formulas fused into it and what they close over,
its wiring, shapes and gathers, the versions and the processor. What cannot be told apart like that (a user's own
formula, a closure over an object) has no signature and is compiled as ever.
"""

from __future__ import annotations

import os
import platform
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
import numpy as np
from jax.experimental import serialize_executable

from perfgrid.engine.cache import forget, keep, recall
from perfgrid.engine.hashing import digest, digest_of_sources

KIND, CODE, MOST_KEPT = "function-", "code-", 4000  # what leads to the code of a function, and this, some 20 kB each
NEVER = 1e9  # seconds of compilation from which on JAX keeps a function
OPTIONS = {
    "xla_cpu_prefer_vector_width": 512,  # whole vectors where the processor has them
    # sums inside the loops that make their terms: a library's sums want arrays of their own, gathers before them, too
    "xla_cpu_experimental_ynn_fusion_type": "",
}
BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}  # which drops them: what they keep is computed again
_SHORTEST = "jax_persistent_cache_min_compile_time_secs"
_TURN = threading.RLock()


def surroundings() -> str:
    """A hash of all that decides what becomes of lowered text: versions, settings, devices and processor."""
    device = jax.devices()[0]
    settings = sorted((k, repr(v)) for k, v in jax.config.values.items() if "cache" not in k)
    versions = (jax.__version__, jaxlib.version.__version__, np.__version__, device.client.platform_version)
    flags = [os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    machine = (device.device_kind, str(len(jax.local_devices())), _processor())
    return digest(*versions, *machine, repr(settings), repr(flags), repr((OPTIONS, BARRIERS)))


@cache
def _processor() -> str:
    """What the processor is and can do, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


class Compiled:
    """The compiled functions of earlier runs, by signature. Nothing is kept unless JAX keeps its functions too."""

    def __init__(self, alone: bool = False):
        """``alone``: JAX writes none of what is compiled meanwhile (what it wrote cannot be written again here)."""
        self.around, self.key, self.changed, self.alone = "", "", False, alone
        if jax.config.values.get("jax_compilation_cache_dir"):
            with suppress(OSError):
                self.around = surroundings()
                self.key = digest(self.around, digest_of_sources())

    def load(self, signature: str | None) -> Any:
        """A compiled function; None if no run has kept it."""
        if signature is None or not self.key:
            return None
        found = recall(self._link(signature), signature)
        return self._loaded(found) if isinstance(found, str) else None

    def compile(self, lowered: Any, signature: str | None, barriers: bool = False) -> Any:
        """Compile a function and keep it under its signature. ``barriers``: those in it hold to the end.

        It may be there already under the text that it was lowered to, where other sources led to the same.
        """
        if signature is None or not self.key:
            return _compiled(lowered, barriers)
        name = CODE + digest(self.around, lowered.as_text())[:32]
        compiled = self._loaded(name)
        if compiled is None:
            _options()  # whose own functions may be in JAX's cache
            before = _READ.number
            compiled = _compiled(lowered, barriers)
            if _READ.number != before:  # what was read from JAX's cache cannot be written again
                return compiled
            with suppress(Exception):  # not every runtime can write its functions down
                keep(name, self.around, serialize_executable.serialize(compiled))
        keep(self._link(signature), signature, name)
        self.changed = True
        return compiled

    def _link(self, signature: str) -> str:
        return KIND + digest(self.key, signature)[:32]

    def _loaded(self, name: str) -> Any:
        try:
            return serialize_executable.deserialize_and_load(*recall(name, self.around))
        except Exception:  # nothing there, or nothing that this runtime takes
            return None

    def __enter__(self) -> Compiled:
        _TURN.acquire()  # the setting is that of the whole process
        self.before = jax.config.values[_SHORTEST]
        if self.alone and self.key:
            jax.config.update(_SHORTEST, NEVER)
        return self

    def __exit__(self, *_: object) -> None:
        jax.config.update(_SHORTEST, self.before)
        _TURN.release()
        if self.changed:
            forget(KIND, MOST_KEPT)
            forget(CODE, MOST_KEPT)


@cache
def _options() -> dict[str, Any]:
    """The options that this version of XLA knows."""
    known = dict(OPTIONS)
    for name, value in OPTIONS.items():
        try:
            jax.jit(lambda x: x).lower(0.0).compile({name: value})
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):
                raise
            del known[name]
    return known


def _compiled(lowered: Any, barriers: bool) -> Any:
    try:
        return lowered.compile(_options() | BARRIERS if barriers else _options())
    except jax.errors.JaxRuntimeError as error:
        if "opt-barrier" not in str(error):  # which XLA does not know in loops over next to nothing
            raise
    return lowered.compile(_options())


class _Read(threading.local):
    """How many functions this thread got from JAX's cache."""

    number = 0

    def __call__(self, event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            self.number += 1


_READ = _Read()
jax.monitoring.register_event_listener(_READ)
