"""Every kernel of the gpu engine compiles for cards of two makers, and fits their registers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.ranks import warm_python

TARGETS = ("sm_80", "sm_90", "gfx942")
# Bytes that a program may have on any of them.
SHARED = 64 * 1024


@pytest.fixture(scope="module")
def compilers() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """One for each card, side by side; they must not be told to interpret."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [*warm_python(), "-m", "tests.wave.engines.gpu.compile_kernels"]
    running = {
        target: subprocess.Popen(
            [*command, target],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for target in TARGETS
    }
    yield running
    for process in running.values():
        process.kill()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles_spills_nothing_and_rounds_each_product(
    target: str, compilers: dict[str, subprocess.Popen[str]]
) -> None:
    output, errors = compilers[target].communicate()
    assert compilers[target].returncode == 0, errors
    for kernel in json.loads(output):
        assert kernel["spills"] == 0, kernel
        assert kernel["shared"] <= SHARED, kernel
        # A history in whole units divides by their size
        assert kernel["fused"] == 0 or kernel["kernel"].startswith("keep "), kernel
        assert kernel["free"] == 0, kernel
