"""Contractions: on tensor cores, or element by element with multiply-adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cuda.elements import At, local
from tilecc.codegen.cuda.interleave import Interleaved
from tilecc.codegen.cuda.mathlib import Prim
from tilecc.codegen.cuda.products import Matrix
from tilecc.codegen.cuda.roles import factors
from tilecc.codegen.cuda.scalars import constant
from tilecc.codegen.cuda.shared import CHUNK, SharedTile
from tilecc.codegen.cuda.steps import Registers, Step
from tilecc.ir.core import Op

if TYPE_CHECKING:
    from tilecc.codegen.cuda.emit import Emitter

_STEP = 4  # summed elements in a body of the loop of multiply-adds


def contract(em: Emitter, op: Op, along: Sequence[Step] = ()) -> None:
    """The sum of products of a `contract`, added to its accumulator if it has one.

    `along`: loads whose copies are started between a tensor core's instructions.
    """
    out, t = op.result, op.result.type.dtype
    if op.attrs["acc"]:
        em.fill(out, lambda at: em.read(op.operands[-1], at))
    else:
        em.fill(out, lambda at: constant(0, t))
    matrix = em.plan.matrices.get(op)
    if matrix is not None:
        em.products[op].emit(Interleaved(em, op, along))
    else:
        _multiply_add(em, op)


def _multiply_add(em: Emitter, op: Op) -> None:
    """acc[registers] += product of the factors, for all summed coordinates."""
    out = op.result
    home, t = em.plan.homes[out], out.type.dtype
    assert isinstance(home, Registers)
    sizes = {a.name: a.size for v in factors(op) for a in v.type.axes}
    over = [(a, sizes[a]) for a in op.over]
    with ExitStack() as stack:
        more: dict[str, Prim] = {}
        for n, (a, size) in enumerate(over):
            if n == len(over) - 1 and size % _STEP == 0 and size > _STEP:
                note = {"pragma_unroll": 1}
                outer = stack.enter_context(T.serial(0, size // _STEP, annotations=note))
                more[a] = outer * _STEP + stack.enter_context(T.unroll(0, _STEP))
            else:
                more[a] = stack.enter_context(T.serial(0, size, annotations={"pragma_unroll": 1}))
        env = stack.enter_context(em.elements(home.layout))
        at = At(home.layout, env, more)
        product: Prim | None = None
        for v in factors(op):
            x = em.math.cast(em.read(v, at), v.type.dtype, t)
            product = x if product is None else product * x
        buffer, index = em.buffers[out], home.layout.register(env)
        T.buffer_store(buffer, buffer[index] + product, [index])


class _Fragments:
    """The addresses at which the lanes of a warp point ldmatrix for a tile.

    Lane l gives the address of row `row` (of the 8 rows of a matrix, l % 8, and which of the four
    matrices, l // 8, it is in) and chunk `chunk`. All are a lane's own address, XORed with and
    added to constants; the lane's own is computed once in a kernel, for all tiles of a shape.
    """

    def __init__(self, em: Emitter, tile: SharedTile, row: Prim, chunk: Prim) -> None:
        self.em, self.tile = em, tile
        self.pitch = tile.pitch * tile.dtype.bytes
        start = em.memory.shared_base() + tirx.Cast("uint32", row * self.pitch)
        lane = start + tirx.Cast("uint32", (chunk ^ tile.phase(row % 8)) * CHUNK)
        key = str(lane)
        if key not in em.lanes:
            em.lanes[key] = local(1, "uint32")
            T.buffer_store(em.lanes[key], em.call("keep", lane), [0])
        self.cell = em.lanes[key]

    def address(self, row: Any, chunk: Any) -> Prim:
        """The address for the matrices from row number `row` (a multiple of 8, as `chunk` of 2)."""
        span = 1 << self.tile.bits
        permuted = chunk % span
        rest = self.tile.offset + row * self.pitch + (chunk - permuted) * CHUNK
        lane = self.cell[0]
        if span > 2:
            lane = lane ^ tirx.Cast("uint32", permuted * CHUNK)
        return lane + tirx.Cast("uint32", rest)

    def load(self, to: Any, row: Any, chunk: Any, n: int, trans: bool) -> None:
        """ldmatrix of `n` matrices."""
        name = f"ldmatrix_x{n}{'_trans' if trans else ''}"
        T.evaluate(self.em.call(name, T.address_of(to), self.address(row, chunk)))


class TensorProduct:
    """A product of matrices on tensor cores."""

    def __init__(self, em: Emitter, matrix: Matrix) -> None:
        """Emits the computation of addresses, which are the same throughout the kernel."""
        self.em, self.matrix = em, matrix
        home = em.plan.homes[matrix.op.result]
        assert isinstance(home, Registers)
        self.layout = home.layout
        self.repeats = dict(home.layout.registers)["m"]
        row, upper, right = em.lane % 8, em.lane // 8 % 2, em.lane // 16
        self.warp_rows = em.sources["w"] * (self.repeats * 16)
        if not matrix.a_in_registers:
            self.a_tile = em.plan.tile_for(matrix.a)
            self.a_trans = self.a_tile.inner != matrix.k[0]
            if matrix.by_elements(self.a_tile):
                pass
            elif self.a_trans:
                self.a: _Fragments = _Columns(
                    em, self.a_tile, row + 8 * right, upper, em.sources["w"]
                )
            else:
                self.a = _Fragments(em, self.a_tile, self.warp_rows + row + 8 * upper, right)
        tile = em.plan.tile_for(matrix.b)
        self.b_tile, self.b_trans = tile, tile.inner != matrix.k[0]
        if matrix.by_elements(tile):
            pass
        elif self.b_trans:
            self.b = _Fragments(em, tile, row + 8 * upper, right)
        else:
            self.b = _Fragments(em, tile, row + 8 * right, upper)

    def emit(self, copies: Interleaved) -> None:
        """All instructions, and between them those copies that have been put off until now.

        Along k, then n, then m: A is read as it is needed. Where its fragments have room in
        registers, along n, then k: so columns are done one after the other, and what reads them
        starts while others are multiplied.
        """
        matrix, pairs = self.matrix, self.matrix.width // 2
        self.b_regs = local(4, "uint32")
        if matrix.op not in self.em.plan.resident:
            self.a_regs = local(4 * self.repeats, "uint32")
            for k in copies.between(matrix.steps):
                self.load_a(k, 0)
                if pairs:
                    with T.unroll(0, pairs) as n:
                        self.columns(k, 0, n * 2, 2)
                if matrix.width % 2:
                    self.columns(k, 0, matrix.width - 1, 1)
            return
        self.a_regs = local(4 * self.repeats * matrix.steps, "uint32")
        with T.unroll(0, matrix.steps) as k:
            self.load_a(k, k)
        for n in copies.between(pairs):
            with T.unroll(0, matrix.steps) as k:
                self.columns(k, k, n * 2, 2)
        if matrix.width % 2:
            with T.unroll(0, matrix.steps) as k:
                self.columns(k, k, matrix.width - 1, 1)

    def columns(self, k: Prim, slot: Any, n: Any, count: int) -> None:
        """One or two instructions beside each other, for all of A's fragments in `slot`."""
        self.load_b(k, n, 2 * count)
        with T.unroll(0, self.repeats) as m:
            if count == 1:
                self.multiply(m, slot, n, 0)
            else:
                with T.unroll(0, 2) as half:
                    self.multiply(m, slot, n + half, half * 2)

    def load_a(self, k: Prim, slot: Any) -> None:
        """Registers of A's fragments: rows g and g + 8 of the left half, then of the right."""
        matrix = self.matrix
        with T.unroll(0, self.repeats) as m:
            at = (slot * self.repeats + m) * 4
            if matrix.a_in_registers or matrix.by_elements(self.a_tile):
                with T.unroll(0, 4) as part:
                    if matrix.a_in_registers:
                        x = self.pair(k, m, part)
                    else:
                        x = self.element(self.a_tile, k, part // 2, {"m": m, "r": part % 2})
                    T.buffer_store(self.a_regs, x, [at + part])
                return
            if self.a_trans:
                self.a.load(self.a_regs[at], k * matrix.depth, (m, self.repeats), 4, True)
            else:
                self.a.load(self.a_regs[at], m * 16, k * 2, 4, False)
            self.round(self.a_regs, at, 4)

    def pair(self, k: Prim, m: Prim, part: Prim) -> Prim:
        """What A's register holds, from registers as accumulators are: 16 bits twice, or 32."""
        v = self.matrix.a
        home = self.em.plan.homes[v]
        assert isinstance(home, Registers)
        if self.matrix.neighbours:
            here = {"m": m, "n": k, "r": part % 2, "c": part // 2}
            return self.em.call("tf32", self.em.buffers[v][home.layout.register(here)])
        env = {"m": m, "n": k * 2 + part // 2, "r": part % 2, "c": tirx.const(0, "int32")}
        index = home.layout.register(env)
        buffer = self.em.buffers[v]
        if home.packed:
            return buffer[index // 2]
        return self.em.math.pack(buffer[index], buffer[index + 1], v.type.dtype)

    def load_b(self, k: Prim, n: Any, count: int) -> None:
        """Registers of B's fragments, one (count 2) or two beside each other (4)."""
        if self.matrix.by_elements(self.b_tile):
            with T.unroll(0, count // 2) as half, T.unroll(0, 2) as part:
                x = self.element(self.b_tile, k, part, {"n": n + half})
                T.buffer_store(self.b_regs, x, [half * 2 + part])
            return
        if self.b_trans:
            self.b.load(self.b_regs[0], k * self.matrix.depth, n, count, True)
        else:
            self.b.load(self.b_regs[0], n * 8, k * 2, count, False)
        self.round(self.b_regs, 0, count)

    def round(self, registers: Any, first: Any, count: int) -> None:
        """Registers of f32 that have been loaded, to what is multiplied."""
        if self.matrix.factors == "tf32":
            with T.unroll(0, count) as n:
                x = tirx.reinterpret("float32", registers[first + n])
                T.buffer_store(registers, self.em.call("tf32", x), [first + n])

    def element(self, tile: SharedTile, k: Prim, part: Prim, at: Mapping[str, Prim]) -> Prim:
        """An element of a factor, rounded: `part` of the step `k` that this thread has, and the
        column `n` of B, or the row `m`, `r` of A.
        """
        matrix, sources = self.matrix, self.em.sources
        t = sources["t"]
        along = t * 2 + part if matrix.neighbours else t + part * 4
        where: dict[str, Prim] = {matrix.k[0]: k * matrix.depth + along}
        if "n" in at:
            where[matrix.n[0]] = at["n"] * 8 + sources["g"]
        else:
            env = {**sources, **at}
            where |= {a: self.layout.coordinate(a, env) for a, _ in matrix.m}
        index = tile.offset // tile.dtype.bytes + tile.index(where)
        return self.em.call("tf32", self.em.view(tile)[index])

    def multiply(self, m: Prim, slot: Any, n: Any, half: Any) -> None:
        """One instruction."""
        out = self.matrix.op.result
        env = {"m": m, "n": n, "r": tirx.const(0, "int32"), "c": tirx.const(0, "int32")}
        to = T.address_of(self.em.buffers[out][self.layout.register(env)])
        a = [self.a_regs[(slot * self.repeats + m) * 4 + part] for part in range(4)]
        b = [self.b_regs[half], self.b_regs[half + 1]]
        T.evaluate(self.em.call(f"mma_{self.matrix.factors}", to, *a, *b))


class _Columns(_Fragments):
    """Addresses in a tile whose rows are summed over: the warp's part is a range of chunks."""

    def __init__(self, em: Emitter, tile: SharedTile, row: Prim, chunk: Prim, warp: Prim) -> None:
        self.row, self.chunk, self.warp = row, chunk, warp
        super().__init__(em, tile, row, chunk)

    def address(self, row: Any, chunk: Any) -> Prim:
        """As above, `chunk` being (repeat, how many repeats a warp has)."""
        m, repeats = chunk
        at = (self.warp * repeats + m) * 2 + self.chunk
        inside = self.row * self.pitch + (at ^ self.tile.phase(self.row)) * CHUNK
        start = self.em.memory.shared_base() + tirx.Cast("uint32", inside + row * self.pitch)
        return start + tirx.Cast("uint32", tirx.const(self.tile.offset, "int32"))
