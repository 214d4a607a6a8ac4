"""Kernels on a GPU: every example against float64 and the emulator, attention beside its peers.

    python benchmarks/gpu.py --build FOLDER     anywhere: saves the kernels; needs tilecc[cuda]
    python benchmarks/gpu.py FOLDER             with a GPU: needs the folder and torch
    python benchmarks/gpu.py                    with a GPU: both, in a temporary folder

On the machine with the GPU tilecc needs only what loading needs (no TVM): see docs/shipping.md.
Without a GPU the second and the third say so and do nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DTYPES = ("float16", "bfloat16", "float32")
ARCHS = ("sm_80", "sm_90")
LENGTHS = (256, 296)  # what tiles divide, and what they do not
# Sizes of extents that are no sequences; scalars by kind.
SIZES = {"B": 1, "H": 4, "G": 2}
SCALARS: dict[str, Any] = {"float": 2.0, "int": 100, "bool": True}
# What is timed: specs whose peers know them, and head dimensions.
TIMED = {"attention": False, "causal": True}
HEAD_DIMS = (64, 128)


def main() -> int:
    """Gives 0, or 1 if a kernel cannot be compiled or is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="where the saved kernels are")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="save the kernels there")
    parser.add_argument("--archs", default=",".join(ARCHS), help="architectures to make code for")
    parser.add_argument("--only", default="", help="files whose name holds one of these (a,b)")
    parser.add_argument("--no-speed", action="store_true", help="compare, and time nothing")
    parser.add_argument("--n", type=int, default=8192, help="tokens of the timed sequences")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    only = [x for x in args.only.split(",") if x]
    if args.build is not None:
        return build(args.build, args.archs.split(","), only)
    reason = no_gpu()
    if reason:
        print(f"no GPU to run on: {reason}")
        return 0
    if args.folder is not None:
        return run(args.folder, args, only)
    with tempfile.TemporaryDirectory(prefix="tilecc-gpu-") as folder:
        failed = build(Path(folder), args.archs.split(","), only)
        return run(Path(folder), args, only) or failed


def no_gpu() -> str:
    """Why nothing can run here; empty if it can."""
    try:
        import torch
    except ImportError as e:
        return str(e)
    return "" if torch.cuda.is_available() else "torch finds no CUDA device"


def wanted(only: list[str]) -> Iterator[tuple[str, str, int]]:
    """Examples, dtypes, head dimensions."""
    for path in sorted(EXAMPLES.glob("*.py")):
        for dtype in DTYPES:
            dims = HEAD_DIMS if path.stem in TIMED and dtype != "float32" else HEAD_DIMS[:1]
            for d in dims:
                if not only or any(x in name_of(path.stem, dtype, d) for x in only):
                    yield path.stem, dtype, d


def name_of(example: str, dtype: str, d: int) -> str:
    """The file of a kernel."""
    return f"{example}-d{d}.{dtype}.tcc"


def build(folder: Path, archs: list[str], only: list[str]) -> int:
    """Compile and save every kernel; says which cannot be compiled."""
    from tilecc.cli.program import load_program
    from tilecc.errors import TileccError

    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, dtype, d in wanted(only):
        path = folder / name_of(name, dtype, d)
        file = str(EXAMPLES / f"{name}.py")
        try:
            program = load_program(file, archs[0], dtype, {}, None)
            if "D" in program.static and d != program.static["D"]:
                program = load_program(file, archs[0], dtype, {"D": d}, None)
            program.kernel(build=False).save(path, archs=archs[1:])
        except TileccError as e:
            print(f"{name} {dtype} d={d}: {e}", file=sys.stderr)
            failed = 1
            continue
        print(f"{path.name}: {path.stat().st_size} bytes", file=sys.stderr)
    return failed


def run(folder: Path, args: Any, only: list[str]) -> int:
    """Compare every kernel of the folder, and time the attention ones."""
    from gpu_compare import compare
    from gpu_speed import speed

    import tilecc as tc

    files = [p for p in sorted(folder.glob("*.tcc")) if not only or any(x in p.name for x in only)]
    lines, times = [], []
    for path in files:
        kernel = tc.load(path)
        dtype = path.name.split(".")[-2]
        lines += [compare(kernel, dtype, sizes(kernel, n), SCALARS) for n in LENGTHS]
        if not args.json:
            print("\n".join(map(str, lines[-len(LENGTHS) :])))
    if not args.no_speed:
        for path in files:
            kernel = tc.load(path)
            dtype = path.name.split(".")[-2]
            if kernel.name in TIMED and dtype != "float32":
                times.append(speed(kernel, dtype, TIMED[kernel.name], args.n, args.rounds))
                if not args.json:
                    print(times[-1])
    if args.json:
        found = {"compared": [vars(x) for x in lines], "timed": [x.to_json() for x in times]}
        print(json.dumps(found, indent=1))
    return int(not all(line.ok for line in lines))


def sizes(kernel: Any, n: int) -> dict[str, int]:
    """A number for each extent of a loaded kernel: sequences have `n` tokens."""
    from tilecc.given import extent_names

    names = extent_names(kernel.func)
    static = {k: v for part in kernel.statics for k, v in part.items()}
    return {name: static.get(name, SIZES.get(name, n)) for name in names}


if __name__ == "__main__":
    sys.exit(main())
