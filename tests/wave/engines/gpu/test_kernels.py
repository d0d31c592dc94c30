"""Tests that the kernels of the gpu engine compile for GPUs of two makers."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.ranks import long_form, warm_python

TARGETS = ("sm_90", long_form("sm_80"), long_form("gfx942"))
# Bytes of shared memory that a kernel may use on all of these GPUs
SHARED = 64 * 1024


@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles_without_spills_fused_products_and_strided_lanes(target: str) -> None:
    # The kernels must be compiled, not interpreted
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [*warm_python(), "-m", "tests.wave.engines.gpu.compile_kernels", target]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for kernel in json.loads(done.stdout):
        assert kernel["spills"] == 0, kernel
        assert kernel["shared"] <= SHARED, kernel
        # Storing a history in integer units divides by the unit, which uses fused products
        assert kernel["fused"] == 0 or kernel["kernel"].startswith("store "), kernel
        assert kernel["free"] == 0, kernel
        # Neighbouring lanes access neighbouring cells, except in sums over the entries of a matrix
        assert kernel["strided"] == 0 or kernel["kernel"].startswith("exchange "), kernel
