"""How the functions of the `cpu` engine are compiled by Numba.

A time loop and the functions that it calls become one piece of machine code. Numba optimizes each
function and makes machine code for it as soon as it is compiled, although a caller then gets its
intermediate code, and optimizes it again. The decorators here omit these steps for functions that
only compiled code calls. Compilation then takes half of the time.

Rows are the exception: they are optimized alone, where the compiler knows that the arrays of a
function do not overlap. Numba's `noalias` says so, and it holds for the arguments of a function
only; it is lost where the function becomes part of its caller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import intrinsic

from hpcfwi.wave.engines.cpu.layout import LANES

# Indices are unsigned. The check of a signed index for a negative value, which counts from the end,
# can keep the compiler from vectorizing a loop.
U = np.uint64
# Bytes that the processor loads into its caches at once.
CACHE_LINE = 64


class PartOfLoop(JITCodeLibrary):
    """Intermediate code of a function, which is optimized and translated with its callers."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True

    # Numba gives machine code its environment through the code generator of the library. There is
    # no machine code, and errors with constant messages, as loops raise them, need no environment.
    @property
    def codegen(self) -> PartOfLoop:
        return self

    def set_env(self, name: str, environment: object) -> None:
        pass


class OptimizedPart(PartOfLoop):
    """Intermediate code of a function that is optimized alone and translated with its callers."""

    def _optimize_final_module(self) -> None:
        JITCodeLibrary._optimize_final_module(self)


class PartCompiler(Compiler):
    """Numba's compiler, for functions that only compiled code calls."""

    library = PartOfLoop

    def define_pipelines(self) -> Any:
        codegen = self.state.targetctx.codegen()
        self.state.library = self.library(codegen, self.state.func_id.func_qualname)
        return super().define_pipelines()


class RowCompiler(PartCompiler):
    """Numba's compiler, which is told that the arrays given to a function do not overlap.

    Without this promise, each loop along a row would begin with a check of all pairs of arrays.
    """

    library = OptimizedPart

    def define_pipelines(self) -> Any:
        self.state.flags.noalias = True
        return super().define_pipelines()


# Without `_nrt`, Numba does not count the references to each array that is passed, which takes as
# long as a hundred cells for each call. No function creates or deletes an array.
LEAN: dict[str, Any] = {"nogil": True, "_nrt": False}
PART: dict[str, Any] = {**LEAN, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

loop: Any = njit(**LEAN)
within_loops: Any = njit(pipeline_class=PartCompiler, **PART)
within_row: Any = njit(pipeline_class=PartCompiler, forceinline=True, **PART)
over_rows: Any = njit(pipeline_class=RowCompiler, **PART)


def _fuse(typing_context, a, b, c):
    """Return a b + c, rounded once."""

    def generate(context, builder, signature, args):
        return builder.fma(*args)

    return a(a, a, a), generate


# Products and sums are fused here only. If the compiler chose which to fuse (fastmath="contract"),
# the bits of a shot would depend on the compilation: processes that compile and processes that load
# from the cache would differ.
fma: Any = intrinsic(_fuse)


def _prefetch(typing_context, array, row, column):
    """Have LANES cells of a row loaded into the cache. They may lie outside of the array."""

    def generate(context, builder, signature, args):
        kind, (values, row, column) = signature.args[0], args
        fields = context.make_array(kind)(context, builder, values)
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        hint = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, *3 * [number]])
        )
        # For reading, to stay in all caches, as data.
        options = number(0), number(3), number(1)
        size = context.get_abi_sizeof(context.get_value_type(kind.dtype))
        for k in range(0, LANES, CACHE_LINE // size):
            place = [row, builder.add(column, column.type(k))]
            cell = cgutils.get_item_pointer(context, builder, kind, fields, place)
            builder.call(hint, [builder.bitcast(cell, pointer), *options])
        return context.get_dummy_value()

    return types.none(array, row, column), generate


prefetch: Any = intrinsic(_prefetch)
