"""How long compiling takes: from spec to callable kernel, in new processes and in a warm one.

Run as a script it is one new process: it compiles the named specs in turn, with TVM and sympy
imported beforehand, and prints what each took as JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

STATIC = {"D": 64}


def compile_once(name: str) -> dict[str, float]:
    """Seconds for one example: reading the file and tracing, all passes, TIR, LLVM."""
    import tilecc as tc

    start, cpu = time.perf_counter(), time.process_time()
    from cases import EXAMPLES

    from tilecc.dsl.load import load_spec

    spec = load_spec(str(EXAMPLES / f"{name}.py"))
    traced = time.perf_counter() - start
    kernel = tc.compile(spec, target="cpu", dtype="float32", static=STATIC)
    total, cpu = time.perf_counter() - start, time.process_time() - cpu
    stages = kernel.timings
    tir, llvm = stages.pop("tir"), stages.pop("llvm")
    passes = sum(stages.values())
    return {
        "total": total, "core": cpu, "load": traced, "passes": passes, "tir": tir, "llvm": llvm
    }  # fmt: skip


def passes_only(name: str) -> float:
    """Seconds for tracing and all passes of an example, down to tile IR; TVM is not needed."""
    from cases import EXAMPLES

    from tilecc.compiler import Compiler
    from tilecc.dsl.load import load_spec
    from tilecc.target import resolve

    spec = load_spec(str(EXAMPLES / f"{name}.py"))
    target = resolve("cpu")
    start = time.perf_counter()
    Compiler(spec.trace("float32"), target, None).passes(STATIC)
    return time.perf_counter() - start


def new_process(names: list[str]) -> dict[str, Any]:
    """The specs compiled in a new process, in this order."""
    done = subprocess.run(
        [sys.executable, __file__, *names], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def import_seconds(repeats: int) -> float:
    """Best time of `import tilecc` in a new interpreter (its start excluded)."""
    code = "import time; t = time.perf_counter(); import tilecc; print(time.perf_counter() - t)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(repeats)
    ]
    return min(float(r.stdout) for r in runs)


def measure(repeats: int) -> dict[str, Any]:
    """All compile times, in seconds.

    Each spec is compiled first and second in new processes (the second finds what the first has
    derived), and again and again in this one.
    """
    names = ["attention", "causal"]
    orders = {n: [new_process(o) for _ in range(repeats)] for n, o in _orders(names).items()}
    found: dict[str, Any] = {"import tilecc": import_seconds(repeats)}
    for name, other in zip(names, reversed(names), strict=True):
        found[name] = {
            "first spec of a process": _summary([run[name] for run in orders[name]]),
            f"second spec, after {other}": _summary([run[name] for run in orders[other]]),
            "again in a warm process": _summary([compile_once(name) for _ in range(repeats)]),
            "passes without TVM, second spec": min(passes_only(name) for _ in range(repeats)),
        }
    return found


def _orders(names: list[str]) -> dict[str, list[str]]:
    """For each name, all of them with that one first."""
    return {n: [n, *(m for m in names if m != n)] for n in names}


def _summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    median = {k: statistics.median(r[k] for r in runs) for k in runs[0]}
    return {"median": median, "best": min(r["total"] for r in runs)}


def main() -> None:
    """One new process."""
    import sympy  # noqa: F401
    import tvm  # noqa: F401

    print(json.dumps({name: compile_once(name) for name in sys.argv[1:]}))


if __name__ == "__main__":
    main()
