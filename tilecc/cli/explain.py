"""`tilecc explain`: why a program became the kernels that it became, from what its passes noted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tilecc.cli import options

if TYPE_CHECKING:
    from tilecc.compiler import Compiled
    from tilecc.errors import Loc
    from tilecc.ir.core import Func, Op
    from tilecc.kernel import Kernel
    from tilecc.passes.base import Remark

_MANY = 8  # so many tiles that fit are listed; all that are refused are


@click.command("explain")
@options.program
@options.shared(
    options.target, options.dtype, options.shape, options.tile, options.split, options.tensor
)
@options.as_json
def command(
    file: str,
    target: str,
    dtype: str,
    shape: dict[str, int],
    tile: Any,
    split: Any,
    tensor: str | None,
    as_json: bool,
) -> None:
    """Say why a spec is fused, streamed and tiled as it is, or is not.

    \b
    Examples:
      tilecc explain examples/causal.py
      tilecc explain examples/attention.py --target canvas --shape N=8,D=4
      tilecc explain examples/softcap.py --target a100 --dtype float16 --json
    """
    from tilecc.cli.program import load_program

    with options.progress(f"compiling {file}"):
        program = load_program(file, target, dtype, shape, tile, split, tensor)
        kernel = program.kernel(build=False)
        found = explained(kernel, kernel.compiled_for(program.sizes))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for line in _lines(found):
        indent = len(line) - len(line.lstrip(" ")) + 4
        options.say(line, indent)


def explained(kernel: Kernel, compiled: Compiled) -> dict[str, Any]:
    """The decisions about a program: fusion, streams with their states, masks, tiles.

    A state's `repair` moves what was accumulated under old values of other states to new ones;
    where there is one it was proved, for finite numbers and for a state that is still at its
    identity. `obligations` are proofs that failed, each with its line: what needs one more pass.
    """
    run = compiled.run
    names = [s.name for s in run.stages]
    online = run.stage("online-softmax").func if "online-softmax" in names else None
    masked = run.stage("mask-tiles").func if "mask-tiles" in names else online
    fusion = [r for r in [*run.details, *run.remarks] if r.pass_name == "fuse"]
    rest = [r for r in run.remarks if r.pass_name not in ("fuse", "online-softmax")]
    tile = kernel.tile
    return {
        "name": kernel.name,
        "target": kernel.target.name,
        "fusion": [_remark(r) for r in fusion],
        "kernels": _kernels(online, masked) if online is not None and masked is not None else [],
        "obligations": [_remark(r) for r in run.remarks if r.pass_name == "online-softmax"],
        "remarks": [{"pass": r.pass_name, **_remark(r)} for r in rest],
        "tile": {
            "sizes": dict(tile),
            "from": "the cost model" if tile.candidates else "given or measured",
            "candidates": [c.to_json() for c in tile.candidates],
        },
    }


def _remark(r: Remark) -> dict[str, Any]:
    return {"message": r.message, **_place(r.loc)}


def _place(loc: Loc | None) -> dict[str, Any]:
    return {"file": loc.file if loc else None, "line": loc.line if loc else None}


def _kernels(online: Func, masked: Func) -> list[dict[str, Any]]:
    """What each kernel streams, from loop IR; masks are found after the repairs."""
    found = []
    pairs = zip(_named(online, "kernel"), _named(masked, "kernel"), strict=True)
    for kernel, with_masks in pairs:
        bounds = [s.attrs.get("where") for s in _streams(with_masks)]
        streams = [_stream(s, w) for s, w in zip(_streams(kernel), bounds, strict=True)]
        found.append({"over": list(kernel.attrs["over"]), "streams": streams, **_place(kernel.loc)})
    return found


def _named(func: Func, name: str) -> list[Op]:
    return [op for op in func.body.ops if op.name == name]


def _streams(kernel: Op) -> list[Op]:
    return [op for op in kernel.body.walk() if op.name == "stream"]


def _stream(stream: Op, where: Any) -> dict[str, Any]:
    from tilecc.ir.printer import print_expr

    operands = [f"%{v.name}" for v in stream.operands]
    return {
        "axis": stream.attrs["axis"],
        "where": print_expr(where, operands) if where is not None else None,
        "states": list(_states(stream)),
    }


def _states(stream: Op) -> Iterator[dict[str, Any]]:
    """The running states: what combines them with a chunk, and what repairs them before."""
    from tilecc.ir.printer import print_expr

    for op in stream.body.ops:
        if op.name == "update":
            repair = op.attrs.get("repair")
            names = [f"%{v.name}" for v in op.operands]
            yield {
                "name": op.result.name,
                "combine": op.attrs["kind"],
                "repair": print_expr(repair, names) if repair is not None else None,
                "with": _meanings(op) if repair is not None else {},
                **_place(op.loc),
            }


def _meanings(update: Op) -> dict[str, str]:
    """What the values that a repair reads stand for, where they are computed from states."""
    from tilecc.ir.printer import print_expr

    maps = [v.owner for v in update.operands[1:] if v.owner is not None and v.owner.name == "map"]
    return {
        f"%{m.result.name}": print_expr(m.expr, [f"%{v.name}" for v in m.operands]) for m in maps
    }


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['name']} for {found['target']}"
    yield from ("", "fusion, by what is moved when sequences are 4096 long and heads 64 wide")
    for r in found["fusion"]:
        yield f"  {_at(r)}{r['message']}"
    for kernel in found["kernels"]:
        yield ""
        yield f"kernel over {', '.join(kernel['over']) or 'nothing: one program'}"
        for stream in kernel["streams"]:
            yield from _stream_lines(stream)
        if not kernel["streams"]:
            yield "  streams over no axis"
    if found["obligations"]:
        yield from ("", "proofs that fail, each of which costs a pass")
        for r in found["obligations"]:
            yield f"  {_at(r)}{r['message']}"
    for r in found["remarks"]:
        yield from ("", r["pass"], f"  {_at(r)}{r['message']}")
    yield from ("", "tile")
    yield from _tile_lines(found["tile"])


def _at(r: dict[str, Any]) -> str:
    return f"line {r['line']}: " if r["line"] is not None else ""


def _stream_lines(stream: dict[str, Any]) -> Iterator[str]:
    states = len(stream["states"])
    yield f"  one pass over {stream['axis']}, with {states} state{'s' if states != 1 else ''}"
    if stream["where"] is not None:
        yield f"    visits only where {stream['where']}"
    for s in stream["states"]:
        yield f"    %{s['name']}: {_at(s)}combined by {s['combine']}"
        if s["repair"] is not None:
            yield f"      repaired by {s['repair']}"
            yield from (f"      with {name} = {text}" for name, text in s["with"].items())
            yield "      proved for finite numbers, and where what it is relative to is infinite"


def _tile_lines(tile: dict[str, Any]) -> Iterator[str]:
    sizes = ", ".join(f"{a}={n}" for a, n in tile["sizes"].items()) or "no axis is tiled"
    yield f"  {sizes}, from {tile['from']}"
    fitting = [c for c in tile["candidates"] if c["fits"]]
    near = sorted(fitting, key=lambda c: (c["seconds"] or 0.0, c["bytes"]))[:_MANY]
    for c in tile["candidates"]:
        if c["fits"] and c not in near and c["tile"] != tile["sizes"]:
            continue
        shown = ", ".join(f"{a}={n}" for a, n in c["tile"].items())
        yield f"  {shown:16} {'fits   ' if c['fits'] else 'refused'} {c['reason']}"
    if len(fitting) > len(near):
        yield f"  ({len(fitting) - len(near)} more fit, and are slower)"
