"""Emission of a plan: registers, scalars, loops, and the reading of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cuda.banks import is_filled, pairs, stored_layout
from tilecc.codegen.cuda.contract import TensorProduct, contract
from tilecc.codegen.cuda.elements import At, local
from tilecc.codegen.cuda.interleave import is_predicable
from tilecc.codegen.cuda.intrinsics import Intrinsics
from tilecc.codegen.cuda.layout import Layout, conforms, register_at
from tilecc.codegen.cuda.mathlib import HALVES, MEMORY, Math, Prim, register_type
from tilecc.codegen.cuda.memory import Memory, Tensor
from tilecc.codegen.cuda.moving import make_pointers
from tilecc.codegen.cuda.plan import Plan
from tilecc.codegen.cuda.reductions import reduce
from tilecc.codegen.cuda.scalars import ExprLowering
from tilecc.codegen.cuda.shared import SharedTile
from tilecc.codegen.cuda.steps import Branch, Item, Loop, Registers, Step
from tilecc.ir.core import Op, Value
from tilecc.ir.dtypes import F32, I64, DType
from tilecc.ir.expr import Cast, Expr

MARK = "tc_operation"
"""Calls of it become comments in the source: the operation that the code behind them is of."""


class Emitter:
    """Emits one kernel's steps; arguments and the shared memory have been made."""

    def __init__(
        self,
        plan: Plan,
        intrinsics: Intrinsics,
        thread: Prim,
        shared: Any,
        tensors: Mapping[Value, Tensor],
        extents: Mapping[str, Prim],
        aligned: bool,
    ) -> None:
        self.plan, self.call, self.shared = plan, intrinsics, shared
        self.math = Math(intrinsics)
        self.tensors, self.extents = tensors, extents
        self.thread, self.lane = thread, thread % 32
        self.sources: dict[str, Prim] = {
            "g": self.lane // 4,
            "t": self.lane % 4,
            "w": thread // 32,
        }
        self.cells: dict[Value, Any] = {}
        self.buffers: dict[Value, Any] = {}
        self.views: dict[str, Any] = {}
        self.lanes: dict[str, Any] = {}
        self.products: dict[Op, TensorProduct] = {}
        self.pointers: dict[Op, tuple[Any, tuple[int, ...]]] = {}
        """Of loads in loops: this thread's address, and how coordinates grow in an iteration."""
        self.predicate: Prim | None = None
        """What asynchronous copies are to be done under."""
        self.memory = Memory(self, aligned)
        self.marks: list[Op] = []
        """What each MARK in the code is of."""

    def emit(self) -> None:
        """The whole kernel."""
        self.products = {op: TensorProduct(self, m) for op, m in self.plan.matrices.items()}
        self.block(self.plan.items)

    # Steps

    def block(self, items: Sequence[Item]) -> None:
        """The steps of a block."""
        for item in items:
            if isinstance(item, Step | Branch) and item.barrier:
                self.barrier(item.wait)
            match item:
                case Step():
                    self.mark(item.op)
                    self.step(item)
                case Loop():
                    self.loop(item)
                case Branch():
                    self.branch(item)

    def mark(self, op: Op) -> None:
        """Say that the code that follows is of `op`."""
        self.marks.append(op)
        T.evaluate(tirx.call_extern("void", MARK, len(self.marks) - 1))

    def barrier(self, wait: bool = False) -> None:
        """A barrier of all threads; `wait` for asynchronous copies first."""
        if wait:
            T.evaluate(self.call("cp_async_wait"))
        T.evaluate(T.cuda.cta_sync())

    def step(self, step: Step) -> None:
        """One step."""
        op, v = step.op, step.value
        match step.kind:
            case "scalar":
                self.scalar(op)
            case "load":
                self.memory.load(op, step.writes[0])
            case "fetch":
                assert v is not None
                tile, t = step.reads[0], v.type.dtype
                self.cell(v, self.math.from_memory(self.view(tile)[tile.offset // t.bytes], t))
            case "compute" if v is not None and not step.writes:
                self.fill(v, lambda at: self.unrounded(v, at))
            case "compute" | "copy" | "stage":
                assert v is not None
                self.to_shared(v, step.writes[0])
            case "contract":
                contract(self, op, step.along)
            case "reduce":
                reduce(self, op)
            case "store":
                self.memory.store(op)
            case "store_rows":
                self.memory.store_rows(op, step.reads[0])
            case "start":
                assert v is not None
                self.assign(v, op.operands[op.body.args.index(v) - 1])
            case "yield":
                self.assign_all(op.body.args[1:], op.body.terminator.operands)
            case "join":
                self.assign_all(op.results, op.regions[step.side].terminator.operands)

    def scalar(self, op: Op) -> None:
        """A scalar, in a cell."""
        if op.name == "load":
            self.cell(op.result, self.memory.scalar(op))
        else:
            self.cell(op.result, self.uniform(op.expr, op.operands, op.result.type.dtype))

    def cell(self, v: Value, x: Prim) -> None:
        """Put `x` in the cell of a scalar."""
        if v not in self.cells:
            self.cells[v] = local(1, register_type(v.type.dtype))
        T.buffer_store(self.cells[v], x, [0])

    def loop(self, item: Loop) -> None:
        """A `for`."""
        op = item.op
        for arg, result in zip(op.body.args[1:], op.results, strict=True):
            for table in (self.cells, self.buffers):
                if arg in table:
                    table[result] = table[arg]
        lo = self.uniform(op.attrs["lo"], op.operands, I64)
        hi = self.uniform(op.attrs["hi"], op.operands, I64)
        make_pointers(self, op, lo)
        with T.serial(lo, tirx.max(lo, hi), annotations={"pragma_unroll": 1}) as var:
            self.cells[op.body.args[0]] = [var]
            self.block(item.body)

    def branch(self, item: Branch) -> None:
        """An `if`."""
        for v in item.op.results:
            self.place(v)
        if is_predicable(item, self.plan):
            self.predicate = self.uniform(item.op.attrs["cond"], item.op.operands)
            self.block(item.then)
            self.predicate = None
            return
        with T.If(self.uniform(item.op.attrs["cond"], item.op.operands)):
            with T.Then():
                self.block(item.then)
                T.evaluate(0)
            with T.Else():
                self.block(item.other)
                T.evaluate(0)

    # Registers

    def place(self, v: Value) -> None:
        """Make the cell or the registers of a value, if it has any."""
        home = self.plan.homes[v]
        if home == "cell" and v not in self.cells:
            self.cells[v] = local(1, register_type(v.type.dtype))
        elif isinstance(home, Registers) and v not in self.buffers:
            if home.packed:
                self.buffers[v] = local(home.layout.count // 2, "uint32")
            else:
                self.buffers[v] = local(home.layout.count, register_type(v.type.dtype))

    @contextmanager
    def elements(self, layout: Layout, skip: str = "") -> Iterator[dict[str, Prim]]:
        """Unrolled loops over the registers of a layout; without the source `skip`."""
        env = dict(self.sources)
        with ExitStack() as stack:
            for source, n in layout.registers:
                if source != skip:
                    env[source] = (
                        stack.enter_context(T.unroll(0, n)) if n > 1 else tirx.const(0, "int32")
                    )
            yield env

    def fill(self, v: Value, f: Callable[[At], Prim]) -> None:
        """Registers of `v` from `f`, which may give 16-bit floats that are not rounded yet."""
        self.place(v)
        home, buffer = self.plan.homes[v], self.buffers[v]
        assert isinstance(home, Registers)
        layout, t = home.layout, v.type.dtype
        if not home.packed:
            with self.elements(layout) as env:
                x = self.rounded(f(At(layout, env)), t)
                T.buffer_store(buffer, x, [layout.register(env)])
            return
        with self.elements(layout, "c") as env:
            low, high = (f(At(layout, {**env, "c": tirx.const(c, "int32")})) for c in (0, 1))
            index = layout.register({**env, "c": tirx.const(0, "int32")}) // 2
            T.buffer_store(buffer, self.math.pack(low, high, t), [index])

    def rounded(self, x: Prim, t: DType) -> Prim:
        """A float that `t` has, from one that it may not have."""
        return self.math.cast(x, F32, t) if t.name in HALVES else x

    def assign(self, v: Value, x: Value) -> None:
        """Let the variable `v` (of a loop, of an `if`) be `x`."""
        home = self.plan.homes[v]
        if home == "cell":
            self.cell(v, self.read(x, At(_NOWHERE, {})))
        elif isinstance(home, Registers):
            self.fill(v, lambda at: self.read(x, at))

    def assign_all(self, variables: Sequence[Value], values: Sequence[Value]) -> None:
        """Assign all at once: none sees another's new value."""
        pairs = [(v, x) for v, x in zip(variables, values, strict=True) if v is not x]
        changed = {v for v, _ in pairs}
        waiting = []
        for v, x in pairs:
            if self._sources(x) & changed:
                saved = Value(v.type, v.name)
                self.plan.homes[saved] = self.plan.homes[v]
                self.assign(saved, x)
                x = saved
            waiting.append((v, x))
        for v, x in waiting:
            self.assign(v, x)

    def _sources(self, v: Value) -> set[Value]:
        if self.plan.homes.get(v) == "inline" and v.owner is not None:
            return {s for x in v.owner.operands for s in self._sources(x)}
        return {v}

    # Reading

    def uniform(self, e: Expr, operands: Sequence[Value], want: DType | None = None) -> Prim:
        """An expression over scalars alone."""
        return self.lowering(operands, At(_NOWHERE, {})).lower(e, want)

    def lowering(self, operands: Sequence[Value], at: At) -> ExprLowering:
        """How to lower an expression for an element."""
        return ExprLowering(
            self.math,
            [v.type.dtype for v in operands],
            lambda k: self.read(operands[k], at),
            at.coordinate,
            self.extents.__getitem__,
            lambda k: not operands[k].type.axes,
            _Sizes(at),
        )

    def evaluate(self, v: Value, at: At) -> Prim:
        """What a map gives for an element."""
        assert v.owner is not None
        op = v.owner
        return self.lowering(op.operands, at).lower(op.expr, v.type.dtype)

    def unrounded(self, v: Value, at: At) -> Prim:
        """What a map gives, before the cast that ends it rounds it to 16 bits."""
        assert v.owner is not None
        e, t = v.owner.expr, v.type.dtype
        if t.name in HALVES and isinstance(e, Cast) and e.to is t:
            return self.lowering(v.owner.operands, at).lower(e.arg, F32)
        return self.evaluate(v, at)

    def read(self, v: Value, at: At) -> Prim:
        """The element of `v` at the coordinates of `at`, in its register type."""
        home = self.plan.homes[v]
        if home == "cell":
            return self.cells[v][0]
        if home == "inline":
            return self.evaluate(v, at)
        if isinstance(home, Registers) and conforms(home.layout, at.layout):
            index = register_at(home.layout, at.layout, at.env)
            if not home.packed:
                return self.buffers[v][index]
            pair = self.buffers[v][index // 2]
            return self.math.unpack(pair, index % 2, v.type.dtype)
        tile = self.plan.tile_for(v)
        return self.math.from_memory(self.view(tile)[self.position(tile, v, at)], v.type.dtype)

    # Shared memory

    def view(self, tile: SharedTile, dtype: str = "") -> Any:
        """Shared memory as elements of a type (that of the tile); indices count from its start."""
        name = dtype or MEMORY[tile.dtype.name]
        if name not in self.views:
            self.views[name] = self.memory.shared_view(name)
        return self.views[name]

    def position(self, tile: SharedTile, v: Value, at: At) -> Prim:
        """The index in `view` of an element; what lies beyond the tile is the tile's edge."""
        where: dict[str, Prim] = {}
        for a in v.type.axes:
            x = at.coordinate(a.name)
            room = tile.size(a.name)
            covers = at.layout.covers(a.name)
            where[a.name] = tirx.min(x, tirx.const(room - 1, "int32")) if covers > room else x
        return tile.offset // tile.dtype.bytes + tile.index(where)

    def to_shared(self, v: Value, tile: SharedTile) -> None:
        """Write a value's elements to a tile, each by one thread."""
        home = self.plan.homes[v]
        layout = stored_layout(self.plan, v)
        fresh = home is tile or home == "inline"
        get = self.unrounded if fresh else self.read
        if tile.zero:
            self.memory.zero_padding(tile)
        if v.owner is not None and is_filled(self.plan, v.owner, tile):
            self.memory.fill(v, tile)
            return
        t = v.type.dtype
        pair = pairs(v, layout, tile)
        with self.elements(layout, "c" if pair else "") as env:
            if pair:
                first, second = (At(layout, {**env, "c": tirx.const(c, "int32")}) for c in (0, 1))
                with self.when(self.owned(layout, v, first)):
                    index = self.position(tile, v, first)
                    if t.bits == 32:
                        to = T.address_of(self.view(tile)[index])
                        T.evaluate(self.call("store_pair", to, get(v, first), get(v, second)))
                        return
                    if isinstance(home, Registers) and home.packed:
                        x = self.buffers[v][layout.register(first.env) // 2]
                    else:
                        x = self.math.pack(get(v, first), get(v, second), t)
                    T.buffer_store(self.view(tile, "uint32"), x, [index // 2])
                return
            at = At(layout, env)
            with self.when(self.owned(layout, v, at)):
                x = self.math.to_memory(get(v, at), t)
                T.buffer_store(self.view(tile), x, [self.position(tile, v, at)])

    def owned(self, layout: Layout, v: Value, at: At) -> list[Prim]:
        """Conditions that this thread is the first that has the element, and that there is one."""
        found = self.first(layout)
        for a in v.type.axes:
            if layout.covers(a.name) > a.size:
                found.append(at.coordinate(a.name) < a.size)
        return found

    def first(self, layout: Layout) -> list[Prim]:
        """Conditions that this thread is the first of those that have the same elements."""
        return [
            tirx.EQ(self.sources[source] // div % n, 0)
            for source, div, n in layout.free(self.plan.roles.sources)
            if n > 1
        ]

    @contextmanager
    def when(self, conditions: Sequence[Prim]) -> Iterator[None]:
        """Code under all of the conditions."""
        with ExitStack() as stack:
            if conditions:
                both = conditions[0]
                for c in conditions[1:]:
                    both = tirx.And(both, c)
                stack.enter_context(T.If(both))
                stack.enter_context(T.Then())
            yield


class _Sizes(dict[str, int]):
    """How many coordinates an element's layout has along each axis."""

    def __init__(self, at: At) -> None:
        super().__init__()
        self.at = at

    def __missing__(self, axis: str) -> int:
        return max(self.at.layout.covers(axis), 1 << 16)


_NOWHERE = Layout((), ())
