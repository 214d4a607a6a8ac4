"""Where each value of a kernel lives, and the steps that make them: a plan that is then emitted.

A scalar lives in a cell, a loaded tile in shared memory, any other in registers, spread over the
threads by its layout. A map that one operation of the same tile reads is computed there. What an
operation cannot read where it is (another layout, a factor of a tensor core's product that must
come from shared memory) is copied to a tile in shared memory first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilecc.codegen.cuda.access import copy_unit, memory_order, store_unit
from tilecc.codegen.cuda.layout import Layout, conforms
from tilecc.codegen.cuda.products import Matrix, matrix_product
from tilecc.codegen.cuda.roles import Roles, factors, wide
from tilecc.codegen.cuda.shared import SharedTile, tile_of
from tilecc.codegen.cuda.steps import Branch, Home, Item, Loop, Registers, Step
from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Block, Op, TensorType, Value, uses
from tilecc.ir.expr import arg_numbers, indices
from tilecc.target import Target

# Registers of a thread that a product which keeps its factor A in registers leaves for fragments of
# B, addresses and row statistics. Measured with ptxas for causal attention, 64 x 64 tiles of 64
# numbers: 141 registers, of which 112 are tiles.
_AROUND = 48


class Plan:
    """The plan of one kernel."""

    def __init__(self, kernel: Op, target: Target, aligned: bool = True) -> None:
        self.kernel, self.target, self.aligned = kernel, target, aligned
        self.roles = Roles(kernel)
        self.uses = uses(kernel.body)
        self.homes: dict[Value, Home] = {}
        self.copies: dict[Value, SharedTile] = {}
        self.scratch: dict[Op, SharedTile] = {}
        """Where reductions over warps exchange their parts."""
        self.tiles: list[SharedTile] = []
        self.matrices: dict[Op, Matrix] = {}
        self.resident: set[Op] = set()
        """Products whose A has room in registers as a whole."""
        self._held = _AROUND  # of a thread, by what is carried around where the plan is
        self._wanted: dict[Value, SharedTile] = {}
        self._copied: set[Value] = set()  # on every way to where the plan is
        self._blocks: dict[Value, Block] = {}
        for op in kernel.body.walk():
            if op.name == "contract":
                found = matrix_product(op, self.roles, target)
                if found is not None:
                    self.matrices[op] = found
        inside = {v for op in kernel.body.walk() for v in op.results}
        outside = [v for op in (kernel, *kernel.body.walk()) for v in op.operands]
        scalars = [v for v in outside if v not in inside and not v.type.axes]
        self.homes |= dict.fromkeys([*kernel.body.args, *scalars], "cell")
        self.items = self._block(kernel.body)

    # Blocks

    def _block(self, block: Block) -> list[Item]:
        items: list[Item] = []
        for op in block.ops:
            self._blocks |= dict.fromkeys(op.results, block)
        waiting: list[Step] = []
        for op in block.ops:
            ready = op.name == "load" and not {s.value for s in waiting} & set(op.operands)
            if waiting and not ready:
                items += waiting
                waiting = []
            for item in self._op(op):
                # Scalars are read when all loads beside them are under way: one barrier for all.
                is_scalar = isinstance(item, Step) and item.kind == "fetch"
                (waiting if is_scalar else items).append(item)  # type: ignore[arg-type]
        return items

    def _op(self, op: Op) -> Iterator[Item]:
        match op.name:
            case "load":
                yield from self._load(op)
            case "map":
                yield from self._map(op)
            case "contract":
                yield from self._contract(op)
            case "reduce":
                yield from self._reduce(op)
            case "store":
                yield from self._store(op)
            case "for":
                yield from self._for(op)
            case "if":
                yield from self._if(op)
            case "yield":
                pass
            case _:
                raise CompileError(Diagnostic(f"no CUDA code for {op.name}", op.loc))

    def _load(self, op: Op) -> Iterator[Item]:
        read = self._tables(op)
        if not op.result.type.axes:
            self.homes[op.result] = "cell"
            if self.roles.warps == 1:
                yield Step("scalar", op, op.result, reads=read)
                return
            # One thread reads it, so that it is read once and not by each warp.
            place = self._tile(op.result)
            yield Step("load", op, op.result, reads=read, writes=[place])
            yield Step("fetch", op, op.result, reads=[place])
            return
        tile = self._wanted.get(op.result)
        if tile is None:
            tile = self._tile(op.result, self._rows_first(op))
        self.homes[op.result] = tile
        if copy_unit(op, tile, self.target, self.aligned):
            tile.asynchronous = True
        yield Step("load", op, op.result, reads=read, writes=[tile])

    def _rows_first(self, op: Op) -> list[str]:
        """The axes of a loaded tile in memory: the tensor's order, but that of fragments for the
        rows of tensor cores, which ldmatrix counts through.
        """
        order = memory_order(op)
        if any(m.a is op.result for m in self.matrices.values()):
            order[:-1] = sorted(order[:-1], key=lambda a: self.roles.order.get(a, 0))
        return order

    def _tables(self, op: Op) -> list[SharedTile]:
        """Tiles that coordinates read."""
        start = 2 if op.name == "store" else 1
        found: list[SharedTile] = []
        for v in op.operands[start:]:
            if v.type.axes:
                home = self.homes.get(v)
                if not isinstance(home, SharedTile):
                    message = f"a table in a coordinate must be loaded, and {v!r} is computed"
                    raise CompileError(Diagnostic(message, op.loc))
                found.append(home)
        return found

    def _map(self, op: Op) -> Iterator[Item]:
        v = op.result
        if not v.type.axes:
            self.homes[v] = "cell"
            yield Step("scalar", op, v)
            return
        if self._is_inline(op):
            self.homes[v] = "inline"
            return
        layout = self.roles.layout(v.type)
        for x in op.operands:
            yield from self._readable(x, layout, op)
        tile = self._wanted.get(v)
        if tile is None and self._only_in_shared(v):
            tile = self._tile(v)
        reads = self._reads(op.operands)
        if tile is not None:
            self.homes[v] = tile
            yield Step("compute", op, v, reads=reads, writes=[tile])
        else:
            self.homes[v] = self._registers(v.type, layout)
            yield Step("compute", op, v, reads=reads)

    def _registers(self, t: TensorType, layout: Layout) -> Registers:
        packed = t.dtype.name in ("f16", "bf16") and layout.registers[-1:] == (("c", 2),)
        return Registers(layout, packed)

    def _is_inline(self, op: Op) -> bool:
        """Whether the map is computed by what reads it."""
        v = op.result
        if v.type.space == "sram":
            return False
        readers = self.uses.get(v, [])
        if any(r.name == "contract" and v in factors(r) for r in readers):
            return False
        if not arg_numbers(op.expr) and not indices(op.expr):
            return True
        if len(readers) != 1 or readers[0].name not in ("map", "reduce"):
            return False
        reader = readers[0]
        if reader not in self._ops_beside(v) or self._overwritten(op, reader):
            return False
        other = reader.operands[0] if reader.name == "reduce" else reader.result
        return set(wide(other.type)) == set(wide(v.type))

    def _overwritten(self, op: Op, reader: Op) -> bool:
        """Whether what `op` reads is no more when `reader` comes: the next tile lies there."""
        read: set[int] = set()
        pending = list(op.operands)
        while pending:
            x = pending.pop()
            home = self.homes.get(x)
            if home == "inline" and x.owner is not None:
                pending += x.owner.operands
            elif isinstance(home, SharedTile):
                read.add(id(home))
        beside = self._ops_beside(op.result)
        between = beside[beside.index(op) + 1 : beside.index(reader)]
        return any(id(self._wanted.get(r)) in read for o in between for r in o.results)

    def _ops_beside(self, v: Value) -> list[Op]:
        return self._blocks[v].ops

    def _only_in_shared(self, v: Value) -> bool:
        """Whether all that read a value are products that want it in shared memory."""
        readers = self.uses.get(v, [])
        return bool(readers) and all(
            r.name == "contract"
            and not self._factor_in_registers(r, v)
            and v in factors(r)
            and not (r.attrs["acc"] and r.operands[-1] is v)
            for r in readers
        )

    def _factor_in_registers(self, op: Op, v: Value) -> bool:
        matrix = self.matrices.get(op)
        if matrix is not None:
            return matrix.a is v and matrix.a_in_registers
        summed = set(op.over)
        layout = self.roles.layout(v.type)
        if any(a in summed for a in wide(v.type)):
            return False
        return conforms(layout, self.roles.layout(op.result.type))

    # Products and reductions

    def _contract(self, op: Op) -> Iterator[Item]:
        layout = self.roles.layout(op.result.type)
        if op.attrs["acc"]:
            yield from self._readable(op.operands[-1], layout, op)
        for v in dict.fromkeys(factors(op)):
            if not self._factor_in_registers(op, v):
                yield from self._in_shared(v, op)
            elif op not in self.matrices:
                yield from self._readable(v, layout, op)
        if op in self.matrices:
            self.matrices[op].require(self)
        reads = self._reads(op.operands)
        self.homes[op.result] = Registers(layout)
        self._hold_factor(op, layout)
        yield Step("contract", op, op.result, reads=reads)

    def _hold_factor(self, op: Op, layout: Layout) -> None:
        """Keep all of A in registers, where that leaves room for what else is there."""
        matrix = self.matrices.get(op)
        if matrix is None or matrix.a_in_registers or matrix.width < 2:
            return
        fragments = 4 * dict(layout.registers)["m"] * matrix.steps
        most = self.target.thread_registers
        if most is None or self._held + layout.count + fragments <= most:
            self.resident.add(op)

    def _reduce(self, op: Op) -> Iterator[Item]:
        v = op.operands[0]
        home = self.homes[v]
        layout = home.layout if isinstance(home, Registers) else self.roles.layout(v.type)
        yield from self._readable(v, layout, op)
        step = Step("reduce", op, op.result, reads=self._reads([v]))
        digits = [d for a in op.over for d in layout.digits(a)]
        if any(d.source == "w" for d in digits):
            step.fenced = True
            t = TensorType(op.result.type.dtype, op.result.type.axes)
            tile = tile_of(Value(t), f"{op.result.name or 'x'}_warps")
            scratch = SharedTile(
                tile.name, (("w", self.roles.warps), *tile.axes), op.result.type.dtype
            )
            self.tiles.append(scratch)
            step.writes.append(scratch)
            self.scratch[op] = scratch
        self.homes[op.result] = (
            Registers(layout.without(*op.over)) if op.result.type.axes else "cell"
        )
        yield step

    def _store(self, op: Op) -> Iterator[Item]:
        v = op.operands[0]
        layout = self.roles.layout(v.type)
        yield from self._readable(v, layout, op)
        if store_unit(op, self.aligned):
            reads = self._reads([v])
            tile = self._tile(v, memory_order(op))
            yield Step("stage", op, v, reads=reads, writes=[tile])
            yield Step("store_rows", op, v, reads=[tile])
        else:
            yield Step("store", op, v, reads=[*self._reads([v]), *self._tables(op)])

    # Regions

    def _for(self, op: Op) -> Iterator[Item]:
        n = int(op.attrs["n_carry"])
        carried: list[SharedTile] = []
        self.homes[op.body.args[0]] = "cell"
        ends = op.body.terminator.operands
        for start, arg, end, result in zip(
            op.operands[:n], op.body.args[1:], ends, op.results, strict=True
        ):
            home = self._carried(start, arg, op)
            self.homes[arg] = self.homes[result] = home
            if isinstance(home, SharedTile):
                carried.append(home)
                self._want(end, home, op)
            elif isinstance(home, Registers):
                yield from self._readable(start, home.layout, op)
            yield Step("start", op, arg, reads=self._assigned([arg], [start]))
        with self._region(op.body.args):
            body = self._block(op.body)
            for arg, end in zip(op.body.args[1:], ends, strict=True):
                home = self.homes[arg]
                if isinstance(home, Registers):
                    body += self._readable(end, home.layout, op)
            body.append(Step("yield", op, reads=self._assigned(op.body.args[1:], ends)))
        yield Loop(op, body, carried)

    @contextmanager
    def _region(self, carried: Sequence[Value] = ()) -> Iterator[None]:
        """A loop's body or a side of an `if`: what is copied there may not be behind it."""
        before = set(self._copied), self._held
        homes = [self.homes[v] for v in carried]
        self._held += sum(h.words for h in homes if isinstance(h, Registers))
        yield
        self._copied, self._held = before

    def _carried(self, start: Value, arg: Value, op: Op) -> Home:
        if not arg.type.axes:
            return "cell"
        if arg.type.space == "sram":
            home = self.homes[start]
            if not isinstance(home, SharedTile):
                message = f"{start!r} starts a tile in shared memory and is not one"
                raise CompileError(Diagnostic(message, op.loc))
            return home
        return self._registers(arg.type, self.roles.layout(arg.type))

    def _want(self, v: Value, tile: SharedTile, op: Op) -> None:
        """Have `v` made in `tile`, by the loads that give it."""
        if self.homes.get(v) is tile:
            return
        self._wanted[v] = tile
        if v.owner is not None and v.owner.name == "if":
            k = v.owner.results.index(v)
            for region in v.owner.regions:
                self._want(region.terminator.operands[k], tile, op)
        elif v.owner is None or v.owner.name not in ("load", "map"):
            message = f"{v!r} is carried in shared memory and is not loaded there"
            raise CompileError(Diagnostic(message, op.loc))

    def _if(self, op: Op) -> Iterator[Item]:
        for v in op.results:
            if not v.type.axes:
                self.homes[v] = "cell"
            elif v.type.space == "sram":
                tile = self._wanted.get(v) or self._tile(v, self._order(v))
                self.homes[v] = tile
                for region in op.regions:
                    k = op.results.index(v)
                    self._want(region.terminator.operands[k], tile, op)
            else:
                self.homes[v] = self._registers(v.type, self.roles.layout(v.type))
        bodies = []
        for side, region in enumerate(op.regions):
            ends = region.terminator.operands
            with self._region():
                items = self._block(region)
                for v, x in zip(op.results, ends, strict=True):
                    home = self.homes[v]
                    if isinstance(home, Registers):
                        items += self._readable(x, home.layout, op)
                items.append(Step("join", op, reads=self._assigned(op.results, ends), side=side))
            bodies.append(items)
        while len(bodies) < 2:
            bodies.append([])
        yield Branch(op, bodies[0], bodies[1])

    def _order(self, v: Value) -> Sequence[str] | None:
        """The order of axes in memory that the load which gives `v` wants."""
        owner = v.owner
        if owner is None:
            return None
        if owner.name == "load":
            return memory_order(owner)
        if owner.name == "if":
            k = owner.results.index(v)
            for region in owner.regions:
                order = self._order(region.terminator.operands[k])
                if order is not None:
                    return order
        return None

    # Reading

    def _is_readable(self, v: Value, layout: Layout) -> bool:
        """Whether each thread can read the elements that it has in `layout`."""
        home = self.homes[v]
        if isinstance(home, Registers):
            return v in self._copied or conforms(home.layout, layout)
        if home == "inline":
            assert v.owner is not None
            return all(self._is_readable(x, layout) for x in v.owner.operands)
        return True

    def _readable(self, v: Value, layout: Layout, op: Op) -> Iterator[Item]:
        """Steps that make `v` readable in `layout`."""
        if self._is_readable(v, layout):
            return
        if self.homes[v] == "inline":
            assert v.owner is not None
            for x in v.owner.operands:
                yield from self._readable(x, layout, op)
        else:
            yield from self._in_shared(v, op)

    def _in_shared(self, v: Value, op: Op) -> Iterator[Item]:
        """Steps that put a copy of `v` in shared memory, if it is not there."""
        if not v.type.axes or isinstance(self.homes[v], SharedTile) or v in self._copied:
            return
        home = self.homes[v]
        layout = home.layout if isinstance(home, Registers) else self.roles.layout(v.type)
        yield from self._readable(v, layout, op)
        reads = self._reads([v])
        if v not in self.copies:
            self.copies[v] = self._tile(v)
        self._copied.add(v)
        yield Step("copy", op, v, reads=reads, writes=[self.copies[v]])

    def _reads(self, values: Sequence[Value]) -> list[SharedTile]:
        """The tiles that reading values reads."""
        found: dict[SharedTile, None] = {}
        for v in values:
            home = self.homes.get(v)
            if isinstance(home, SharedTile):
                found[home] = None
            elif v in self._copied:
                found[self.copies[v]] = None
            elif home == "inline":
                assert v.owner is not None
                found |= dict.fromkeys(self._reads(v.owner.operands))
        return list(found)

    def _assigned(self, to: Sequence[Value], values: Sequence[Value]) -> list[SharedTile]:
        """The tiles that assignments read; what stays in its tile is not read."""
        moved = [x for v, x in zip(to, values, strict=True) if isinstance(self.homes[v], Registers)]
        return self._reads(moved)

    def tile_for(self, v: Value) -> SharedTile:
        """The tile in which `v` is, or is copied."""
        home: Any = self.homes[v]
        return home if isinstance(home, SharedTile) else self.copies[v]

    def _tile(self, v: Value, order: Sequence[str] | None = None) -> SharedTile:
        name = f"{v.name or 'x'}_{len(self.tiles)}"
        tile = tile_of(v, name, order)
        self.tiles.append(tile)
        return tile
