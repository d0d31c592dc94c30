"""Tests of the compiled functions of the `cpu` engine: SIMD instructions and fused products."""

from __future__ import annotations

import platform
import re
from itertools import product

import numpy as np
import pytest
from numba import njit, typeof

from hpcfwi.wave.engines.cpu import jit, kernels
from hpcfwi.wave.engines.cpu.kernels import Cells, SlabPlace
from hpcfwi.wave.engines.cpu.layout import Axis, Laplacian, Sides
from tests.ranks import long_form

CELLS = Cells(8, 4, 16, 128)
# x86's packed additions and subtractions, with the registers of AVX.
PACKED = {
    np.dtype(np.float32): r"\bv(?:add|sub)ps\b.*%[yz]mm",
    np.dtype(np.float64): r"\bv(?:add|sub)pd\b.*%[yz]mm",
}


def make_arguments(name: str, order: int, ndim: int, dtype: type) -> tuple[object, ...]:
    """Return arguments of a function of `kernels` for one form of it."""
    weights = (dtype(1),) * (order // 2)
    field, memory = np.zeros((32, 160), dtype), (np.zeros((32, 160), dtype),) * 2
    far = weights if ndim == 3 else None
    laplacian = Laplacian(dtype(1), 2, far, weights, weights)
    axis = Axis(1, dtype(1), weights, weights)
    profile = np.zeros(160, dtype)
    place, sides = SlabPlace(8, 1, profile, profile, 0, 1), Sides(128, profile, profile, axis)
    arguments: dict[str, tuple[object, ...]] = {
        "advance": (field, field, field, None, CELLS, laplacian, far),
        "advance_absorbing": (
            *(field, field, field, None, memory, CELLS, laplacian, far, 2, place, axis),
        ),
        "absorb": (field, field, field, None, memory, CELLS, place, axis),
        "absorb_back": (field, field, memory, CELLS, place, axis),
        "absorb_side": (field, field, field, None, memory, CELLS, 8, 4, sides),
        "absorb_side_back": (field, field, field, memory, CELLS, 8, 4, sides),
        "relax_slope": (memory[0], field, CELLS, place, axis),
        "relax_slope_back": (memory, field, CELLS, place, axis),
    }
    return arguments[name]


def count_sums(name: str, order: int, ndim: int) -> int:
    """Return the number of pairs of cells that a function adds up or subtracts for a cell."""
    pairs = {
        "advance": ndim,
        "advance_absorbing": ndim + 1,
        "absorb": 2,
        "absorb_back": 2,
        "absorb_side": 3,
        "absorb_side_back": 4,
        "relax_slope": 1,
        "relax_slope_back": 2,
    }
    return pairs[name] * order // 2


def compile_function(name: str, order: int, ndim: int, dtype: type) -> tuple[str, str]:
    """Return the intermediate code and the assembly of one form of a function of `kernels`."""
    function = getattr(kernels, name)

    @njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
    def call(arguments):
        function(*arguments)

    call.compile((typeof(make_arguments(name, order, ndim, dtype)),))
    (signature,) = call.signatures
    return call.inspect_llvm(signature), call.inspect_asm(signature)


FLAT = ("absorb", "absorb_back", "absorb_side", "absorb_side_back", "relax_slope")
CASES = [
    *product(("advance", "advance_absorbing"), (2, 3)),
    *product((*FLAT, "relax_slope_back"), (2,)),
]


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="instructions are recognized by their x86 names"
)
@pytest.mark.parametrize(("name", "ndim"), CASES)
@pytest.mark.parametrize(
    ("order", "dtype"),
    [
        (8, np.float32),
        *(long_form(n, dtype) for n, dtype in product((2, 4, 6), (np.float32, np.float64))),
        long_form(8, np.float64),
    ],
)
def test_sums_are_compiled_to_packed_instructions_and_fused_by_the_source_only(
    name, ndim, order, dtype
):
    code, assembly = compile_function(name, order, ndim, dtype)
    packed = re.findall(PACKED[np.dtype(dtype)], assembly)
    assert len(packed) >= count_sums(name, order, ndim)
    # The bits would depend on the compilation if the compiler chose which products to fuse.
    assert not re.search(r"\bf(add|sub|mul)\b.*\b(contract|fast)\b", code)


@pytest.mark.parametrize(("dtype", "lines"), [(np.float32, 2), (np.float64, 4)])
def test_advance_asks_for_three_groups_of_later_rows_in_3d(dtype, lines) -> None:
    calls = [
        compile_function("advance", 8, ndim, dtype)[0].count("call void @llvm.prefetch")
        for ndim in (2, 3)
    ]
    assert calls == [0, 3 * lines]


@pytest.mark.parametrize(
    "decorator", [jit.within_loops, jit.over_rows], ids=["within loops", "over rows"]
)
def test_functions_of_loops_have_no_machine_code_of_their_own(decorator) -> None:
    @decorator
    def double(x):
        return x + x

    double.compile((typeof(1.0),))
    (part,) = double.overloads.values()
    assert part.library.get_pointer_to_function(part.fndesc.llvm_func_name) == 0

    @jit.loop
    def call(x):
        return double(x)

    assert call(1.0) == 2.0
