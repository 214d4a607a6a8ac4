"""Takes out of a loop-level kernel what nothing reads."""

from __future__ import annotations

from tilecc.ir.core import Op, uses

_PURE = frozenset({"map", "reduce", "contract", "at", "update"})


def sweep(kernel: Op) -> None:
    """Take out operations and states of `kernel`, which is edited in place, that nothing reads."""
    changed = True
    while changed:
        changed = False
        read = uses(kernel.body)
        for block in [kernel.body, *(op.body for op in kernel.body.ops if op.name == "stream")]:
            for op in list(block.ops):
                if op.name in _PURE and not any(r in read for r in op.results):
                    block.ops.remove(op)
                    changed = True
                elif op.name == "stream":
                    changed |= _drop_results(op, [n for n, r in enumerate(op.results) if r in read])


def _drop_results(stream: Op, keep: list[int]) -> bool:
    if not keep or len(keep) == len(stream.results):
        return False
    end = stream.body.terminator
    stream.results = [stream.results[n] for n in keep]
    end.operands = [end.operands[n] for n in keep]
    return True
