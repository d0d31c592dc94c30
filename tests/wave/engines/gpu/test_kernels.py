"""Every kernel of the gpu engine compiles for cards of two makers, and fits their registers."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.ranks import long_form, warm_python

TARGETS = ("sm_90", long_form("sm_80"), long_form("gfx942"))
# Bytes that a program may have on any of them.
SHARED = 64 * 1024


@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles_spills_nothing_and_rounds_each_product(target: str) -> None:
    # They must not be told to interpret
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [*warm_python(), "-m", "tests.wave.engines.gpu.compile_kernels", target]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for kernel in json.loads(done.stdout):
        assert kernel["spills"] == 0, kernel
        assert kernel["shared"] <= SHARED, kernel
        # A history in whole units divides by their size
        assert kernel["fused"] == 0 or kernel["kernel"].startswith("store "), kernel
        assert kernel["free"] == 0, kernel
