"""A program that compiles the kernels of the `gpu` engine for a GPU that need not be present.

python -m tests.wave.engines.gpu.compile_kernels sm_90
runs tiny simulations, their gradients and derivatives, in which every launch is compiled but not
executed, and prints the resources of each kernel as JSON.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from hpcfwi.wave import Acquisition, Boundary, Method, Snapshots
from hpcfwi.wave.engines.gpu import engine as gpu
from hpcfwi.wave.engines.gpu import staggered
from hpcfwi.wave.engines.gpu.device import CANDIDATES
from hpcfwi.wave.engines.gpu.sweep import Stepper
from hpcfwi.wave.simulation import set_up
from tests.wave.examples import random_shots
from tests.wave.media import random_medium, random_survey

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
# Divisions without specified rounding, and sums without specified order
FREE = r'arith\.divf|"tt\.reduce"(?:(?!tt\.reduce\.return).)*arith\.addf'
HISTORIES = {
    4: (Snapshots(1, format="bfloat16"),),
    8: (Boundary(1, format="int8"),),
}


class Pretended:
    """A driver for a GPU that is not present."""

    def __init__(self, target: GPUTarget) -> None:
        self.get_current_target = lambda: target
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda _: 0


def list_kernels(target: GPUTarget) -> dict[str, Any]:
    """Return the compiled kernels that simulations in 2-D and 3-D launch, by name and hash."""
    found: dict[str, Any] = {}
    triton.runtime.driver.set_active(Pretended(target))
    launch = JITFunction.run

    def compile_only(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = launch(kernel, *args, **{**kwargs, "warmup": True})
        found[f"{kernel.__name__} {compiled.hash}"] = compiled
        return compiled

    JITFunction.run = compile_only
    for shape, spacing in (((10, 13), (8.0, 11.0)), ((9, 8, 10), (9.0, 8.0, 10.0))):
        for order, histories in HISTORIES.items():
            shots = random_shots(
                shape=shape,
                spacing=spacing,
                shots=2,
                samples=4,
                order=order,
                boundary=3,
                free_surface=order == 8,
            )
            shots = replace(shots, vp=shots.vp.float())
            problem = shots.simulate(engine="eager", keep=False)._problem
            wavelet = shots.wavelet[:, None].float()
            for tile in CANDIDATES[len(shape)]:
                gpu.clear()
                Stepper.find_tile = lambda _, tile=tile: tile  # type: ignore[method-assign]
                gpu.forward(problem, wavelet, False)
            for history in histories:
                simulated = replace(problem, history=history)
                traces, state = gpu.forward(simulated, wavelet, True)
                gpu.backward(simulated, state, torch.zeros_like(traces))
                gpu.scatter(simulated, state, {"vp": torch.zeros_like(problem.like)})
    for shape, equation, order in (
        ((12, 13), "viscoelastic", 8),
        ((10, 11, 12), "elastic", 8),
        ((10, 11, 12), "acoustic-vti", 4),
    ):
        medium = {name: array.float() for name, array in random_medium(equation, shape).items()}
        survey = random_survey(shape, samples=2, order=order, free_surface=True, boundary=3)
        acquisition = Acquisition(
            survey.dt, survey.wavelet.float(), survey.sources, survey.receivers
        )
        method = Method(order, 3, True, 10.0, 2600.0, "eager", survey.options["history"], equation)
        task = set_up(medium, survey.spacing, acquisition, method)
        traces, state = staggered.forward(task.problem, task.wavelet, True)
        staggered.backward(task.problem, state, torch.zeros_like(traces))
        staggered.scatter(task.problem, state, {"vp": torch.zeros_like(medium["vp"])})
    return found


def describe(name: str, compiled: Any, target: GPUTarget) -> dict[str, Any]:
    """Return the resources of a kernel: registers of a thread, spills, shared memory, and counts.

    fused: multiply-adds that do not round the product; those within a correctly rounded division
    count, too. free: sums whose order, and divisions whose rounding, is left to the compiler; a
    maximum does not depend on the order. strided: blocks whose lanes are not along the last axis.
    """
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        spills = re.findall(r"[sv]gpr_spill_count:\s+(\d+)", text)
        registers = re.findall(r"\.vgpr_count:\s+(\d+)", text)
        fused = re.findall(r"v_(?:pk_)?(?:fma|fmac|mac|mad)_f32", text)
    else:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
        spills = re.findall(r"(?:STACK|LOCAL):(\d+)", run.stdout)
        registers = re.findall(r"REG:(\d+)", run.stdout)
        fused = re.findall(r"fma\.rn\.f32", compiled.asm["ptx"])
    free = re.findall(FREE, compiled.asm["ttir"], re.DOTALL)
    strided = re.findall(r"#ttg\.blocked<.*order = \[0, ", compiled.asm["ttgir"])
    assert spills, "the compiler does not say how many registers it spilled"
    return {
        "kernel": name,
        "registers": max(map(int, registers)),
        "spills": sum(map(int, spills)),
        "shared": compiled.metadata.shared,
        "fused": len(fused),
        "free": len(free),
        "strided": len(strided),
    }


def main() -> None:
    target = TARGETS[sys.argv[1]]
    found = list_kernels(target).items()
    print(json.dumps([describe(name, compiled, target) for name, compiled in found]))


if __name__ == "__main__":
    main()
