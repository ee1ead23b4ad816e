"""How the suite compiles (tests/conftest.py): its settings hold for what was compiled before, too."""

import os
import subprocess
import sys

import jax

from tests.conftest import OPTIMISATIONS, as_the_program, compile_with


def test_functions_are_compiled_anew_where_the_setting_changes():
    traced = []

    @jax.jit
    def increased(x):
        traced.append(x)
        return x + 1

    before = jax.config.values[OPTIMISATIONS]
    try:
        for setting, times in ((before, 1), (not before, 2), (not before, 2), (before, 3)):
            compile_with(setting)
            increased(1.0)
            assert len(traced) == times
    finally:
        compile_with(before)


def test_processes_can_compile_as_the_program(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flag := "--xla_cpu_parallel_codegen_split_count=1")
    monkeypatch.setenv(OPTIMISATIONS.upper(), "1")
    code = f"import os, jax; print(os.environ.get('XLA_FLAGS'), jax.config.values['{OPTIMISATIONS}'])"
    for own, told in ((as_the_program(), "None False"), (os.environ, f"{flag} True")):
        done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True)
        assert done.stdout.strip() == told, done.stderr
