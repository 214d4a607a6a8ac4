"""What may be tuned on a GPU: tile sizes, as far as fragments fit the registers of a thread."""

from __future__ import annotations

from tilecc.codegen.cuda.roles import Roles
from tilecc.codegen.space import Space
from tilecc.ir.core import Func, Op, Value, uses
from tilecc.target import Target

# Registers of a thread for addresses, fragments of loaded tiles and row statistics. Measured with
# ptxas for causal attention, 64 x 64 tiles of 64 numbers: 141 registers, of which 112 are tiles.
OTHER_REGISTERS = 48


def space(target: Target) -> Space:
    """Rows of whole warps' fragments, and tiles of the streamed axis in steps of a fragment."""
    return Space(
        rows=(16, 32, 64, 128, 256),
        streamed=(16, 32, 64, 96, 128, 192, 256),
        refused=_spills,
    )


def _spills(func: Func, target: Target) -> str:
    """Whether a kernel's tiles need more registers than a thread has."""
    for kernel in (op for op in func.body.ops if op.name == "kernel"):
        threads = Roles(kernel).threads
        needs = -(-_tile_bytes(kernel) // (4 * threads)) + OTHER_REGISTERS
        if target.thread_registers and needs > target.thread_registers:
            return f"needs {needs} of {target.thread_registers} registers of a thread"
    return ""


def _tile_bytes(kernel: Op) -> int:
    """Bytes of the largest tiles that are held at once: sums, what is carried, and factors that are
    computed; of regions one after the other (a masked copy of a loop) the largest.
    """
    read = uses(kernel.body)

    def held(op: Op) -> bool:
        if op.name == "contract":
            return not op.attrs["acc"]
        return op.name == "map" and any(r.name == "contract" for r in read.get(op.result, ()))

    loops = [op for op in kernel.body.walk() if op.name == "for"]
    carried = max((sum(map(_bytes, op.body.args[1:])) for op in loops), default=0)
    inner = (sum(_bytes(x.result) for x in op.body.walk() if held(x)) for op in loops)
    return carried + max(inner, default=0)


def _bytes(v: Value) -> int:
    size = v.type.dtype.bytes
    for a in v.type.axes:
        size *= a.static or 1
    return size if len(v.type.axes) > 1 else 0
