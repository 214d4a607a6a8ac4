"""Keeps exponentials of differences right for all finite numbers, at one multiply-add an element.

`exp2(x*c - g)` with `g = y*c` rounded is off by a factor of 2**(y*c - g): nothing for ordinary
numbers, everything for those beyond 2**28, where neighbouring floats are 16 apart. And a repair
that takes `old(m)*c - g` moves what was accumulated under another reference than this one.

    %m = update max %r                         %r1 = map where(abs(%r*c) <= 2**28, %r*c, %r)
    %g = map where(%m == -inf, 0.0, %m) * c    %m = update max %r1
    %p = map exp2(%s * c - %g)                 %g = map where(%m == -inf, 0.0, %m)
    %l = update sum ..                   -->   %a = map where(abs(%g) <= 2**28, c, 1.0)
      repair acc * exp2(old(%m)*c - %g)        %p = map exp2(%s * %a - %g)
                                               %l = update sum .. repair acc * exp2(old(%m) - %g)

Where y is no extreme, or c is not less than 1, it becomes `exp2((x - y) * c)`, one operation more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from tilecc.analysis.dead import sweep
from tilecc.analysis.exponent import (
    Difference,
    differences,
    is_choice,
    is_extreme,
    leaves_to,
    ratio,
    scaled,
    scales,
)
from tilecc.ir.core import Block, Cloner, Func, Op, TensorType, Value
from tilecc.ir.dtypes import F32, F64
from tilecc.ir.expr import (
    Arg,
    Call,
    Const,
    Expr,
    Old,
    arg_numbers,
    call,
    shift_args,
    transform,
    walk,
)
from tilecc.passes.base import Remarks

# |y*c| up to which y*c is rounded to a multiple of 16 at most (half of that is 2**8 as a factor),
# and beyond which different numbers are 16 apart at least (2**-16 as a factor): 24 + 4 bits.
LIMIT = 2.0**28
ONE = Const(1.0)


@dataclass(frozen=True)
class Exponents:
    """Makes exponentials of differences right for all finite numbers, and their repairs exact."""

    name: ClassVar[str] = "exponents"

    def apply(self, func: Func, remarks: Remarks) -> Func:
        """`func` with exponents rewritten (loop IR)."""
        new = Cloner().func(func)
        for kernel in new.body.ops:
            if kernel.name == "kernel":
                _Kernel(kernel).rewrite()
        return new


@dataclass(eq=False)
class _Row:
    """A reference as it is computed from now on, in units of exponents or of elements.

    unit: c of x*c, for the elements x. scale: what elements are multiplied by so as to be in units
    of exponents; None: the reference is in units of elements.
    """

    unit: Expr
    value: Value
    scale: Value | None = None


@dataclass(eq=False)
class _Edit:
    """An operation whose expression `key` is being rewritten."""

    op: Op
    key: str
    operands: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.operands = list(self.op.operands)

    def arg(self, v: Value) -> Arg:
        """The operand that stands for `v`."""
        if v not in self.operands:
            self.operands.append(v)
        return Arg(self.operands.index(v))

    def finish(self, e: Expr) -> None:
        """Make `e` the operation's expression, and drop the operands that it does not read."""
        first = int(self.key == "repair")  # an update keeps its contribution
        used = [*range(first), *sorted(k for k in arg_numbers(e) if k >= first)]
        self.op.attrs[self.key] = shift_args(e, {k: Arg(n) for n, k in enumerate(used)})
        self.op.operands = [self.operands[k] for k in used]


@dataclass(eq=False)
class _Kernel:
    """One kernel, which is edited in place (it is the pass's own copy)."""

    kernel: Op
    home: dict[Op, Block] = field(default_factory=dict)
    rows: dict[Op, _Row | None] = field(default_factory=dict)
    states: dict[tuple[Value, Expr], Value] = field(default_factory=dict)

    def rewrite(self) -> None:
        """Rewrite all exponentials of differences."""
        blocks = [self.kernel.body]
        blocks += [op.body for op in self.kernel.body.ops if op.name == "stream"]
        self.home = {op: block for block in blocks for op in block.ops}
        readers: dict[Op, list[tuple[Op, Difference]]] = {}
        for op, d in self._exponents():
            if d.reference is not None:
                readers.setdefault(d.reference, []).append((op, d))
        for reference, found in readers.items():
            self.rows[reference] = self._row(reference, found)
        for op in list(self.home):
            if key := _KEYS.get(op.name):
                self._edit(op, key)
        sweep(self.kernel)

    def _exponents(self) -> Iterator[tuple[Op, Difference]]:
        for op in self.home:
            e = op.attrs.get(_KEYS.get(op.name, ""))
            for n in walk(e) if e is not None else ():
                if isinstance(n, Call) and n.fn == "exp2":
                    for d in differences(n.args[0], op.operands):
                        yield op, d

    def _row(self, reference: Op, found: list[tuple[Op, Difference]]) -> _Row | None:
        """How to compute a reference that `found` read, if there is a better way."""
        axes = set(reference.result.type.names)
        maps = [(set(op.result.type.names), d) for op, d in found if op.name == "map"]
        elements = [d for names, d in maps if names > axes] or [d for _, d in maps]
        t = reference.result.type
        if len({d.flipped for d in elements}) != 1 or t.dtype not in (F32, F64):
            return None
        edit = _Edit(reference, "expr")
        y = self._opened(edit, reference.expr)
        units = {scaled(d.of)[1] for names, d in maps if names > axes} or _smallest(scales(y))
        if len(units) != 1:
            return None
        (unit,) = units
        extreme = is_extreme(y, edit.operands, "min" if elements[0].flipped else "max")
        if extreme and t.dtype is F32 and isinstance(unit, Const) and 0.0 < unit.value < 1.0:
            e = self._in_exponents(edit, y, unit)
            if e is None:
                return None
            value = self._after(reference, e, edit.operands, t, reference.result.name)
            small = call("le", call("abs", Arg(0)), Const(LIMIT))
            assert value.owner is not None
            scale = self._after(value.owner, call("where", small, unit, ONE), [value], t, "a")
            return _Row(unit, value, scale)
        own = scaled(y)[1]
        if unit == ONE or not (extreme or own == unit):
            return None
        e = _in_elements(y, unit)
        if e is None:
            return None
        if isinstance(e, Arg) and edit.operands[e.k].type == t:
            return _Row(unit, edit.operands[e.k])
        return _Row(unit, self._after(reference, e, edit.operands, t, "y"))

    def _edit(self, op: Op, key: str) -> None:
        before = op.attrs.get(key)
        if before is None:
            return
        edit = _Edit(op, key)

        def f(n: Expr) -> Expr | None:
            if not (isinstance(n, Call) and n.fn == "exp2"):
                return None
            for d in differences(n.args[0], op.operands):
                e = self._exponent(edit, d)
                if e is not None:
                    return call("exp2", e)
            return None

        e = transform(before, f)
        if e != before:
            edit.finish(e)

    def _exponent(self, edit: _Edit, d: Difference) -> Expr | None:
        """`d` as it is computed from now on; None for as before."""
        if d.reference is None:
            (x, c), (y, same) = scaled(d.of), scaled(d.inline)
            return d.written(x, y, c) if c == same != ONE and x != y else None
        row = self.rows.get(d.reference)
        if row is None:
            return None
        reference = edit.arg(row.value)
        x, c = scaled(d.of)
        if row.scale is None:
            of = x if c == row.unit else _in_elements(self._opened(edit, d.of), row.unit)
            return None if of is None else d.written(of, reference, row.unit)
        if not any(isinstance(n, Old) for n in walk(x)) and not is_choice(x):
            # Not rounded before the difference is taken.
            if set(edit.op.result.type.names) > set(row.value.type.names) and c == row.unit:
                return d.written(call("mul", x, edit.arg(row.scale)), reference)
            q = ratio(c, row.unit)
            if q is not None and c != ONE:
                small = call("le", call("abs", call("mul", x, c)), Const(LIMIT))
                return d.written(call("mul", x, call("where", small, c, Const(q))), reference)
        y = self._opened(edit, d.of)
        of = self._in_exponents(edit, y, row.unit)
        return None if of is None else d.written(of, reference)

    def _opened(self, edit: _Edit, y: Expr) -> Expr:
        """`y` with those maps written out that choose between numbers."""
        x, c = scaled(y)
        if c != ONE:
            return call("mul", self._opened(edit, x), c)
        match y:
            case Arg(k):
                op = edit.operands[k].owner
                if op in self.home and op.name == "map" and is_choice(scaled(op.expr)[0]):
                    args = {n: edit.arg(v) for n, v in enumerate(op.operands)}
                    return self._opened(edit, shift_args(op.expr, dict(args)))
            case Call("where", (cond, a, b)):
                return call("where", cond, self._opened(edit, a), self._opened(edit, b))
            case Call("maximum" | "minimum" as fn, (a, b)):
                return call(fn, self._opened(edit, a), self._opened(edit, b))
        return y

    def _in_exponents(self, edit: _Edit, y: Expr, unit: Expr) -> Expr | None:
        """y, but y / unit where y is large. It rises with y, so that it may pass extremes."""

        def state(k: int) -> Value | None:
            v = edit.operands[k]
            own = v.owner is not None and self.home.get(v.owner) is self.home[edit.op]
            return self._state(v, unit) if own else None

        def leaf(x: Expr, c: Expr) -> Expr | None:
            q = ratio(c, unit)
            if q is None:
                return None
            if q == 1.0 and isinstance(x, Arg | Old) and (s := state(x.k)) is not None:
                return type(x)(edit.arg(s).k)
            return _split(x, c, q)

        def condition(e: Expr) -> Expr:
            match e:
                case Call(fn, (Arg(k), fixed)) if (s := state(k)) is not None:
                    return call(fn, edit.arg(s), fixed)
            return e

        return leaves_to(y, leaf, condition)

    def _state(self, v: Value, unit: Expr) -> Value | None:
        """The running extreme `v` in units of exponents: a state beside `v`."""
        update = v.owner
        assert update is not None
        kind, repair = update.attrs.get("kind"), update.attrs.get("repair")
        if update.name != "update" or kind not in ("max", "min") or repair is not None:
            return None
        if (v, unit) not in self.states:
            e = _split(Arg(0), unit, 1.0)
            source = self._after(update, e, [update.operands[0]], v.type, "r")
            assert source.owner is not None
            attrs = {"kind": kind, "repair": None}
            new = Op("update", [source], [v.type], attrs, loc=update.loc, names=[v.name])
            self._insert(source.owner, new)
            self._yield(v, new.result)
            self.states[v, unit] = new.result
        return self.states[v, unit]

    def _yield(self, old: Value, new: Value) -> None:
        """`new` beside `old` among the states that their stream gives."""
        assert old.owner is not None
        body = self.home[old.owner]
        stream = next(op for op in self.kernel.body.ops if body in op.regions)
        k = body.terminator.operands.index(old) + 1
        body.terminator.operands.insert(k, new)
        outer = Value(new.type, new.name)
        outer.owner = stream
        stream.results.insert(k, outer)

    def _after(self, op: Op, e: Expr, operands: list[Value], t: TensorType, name: str) -> Value:
        """A map right after `op`."""
        used = sorted(arg_numbers(e))
        e = shift_args(e, {k: Arg(n) for n, k in enumerate(used)})
        new = Op("map", [operands[k] for k in used], [t], {"expr": e}, loc=op.loc, names=[name])
        self._insert(op, new)
        return new.result

    def _insert(self, op: Op, new: Op) -> None:
        block = self.home[new] = self.home[op]
        block.ops.insert(block.ops.index(op) + 1, new)


_KEYS = {"map": "expr", "update": "repair"}


def _smallest(scales: list[Expr]) -> set[Expr]:
    """The smallest of some scales, if they are positive numbers."""
    numbers = [c for c in scales if isinstance(c, Const) and c.value > 0]
    return (
        {min(numbers, key=lambda c: c.value)} if numbers and len(numbers) == len(scales) else set()
    )


def _times(x: Expr, q: Expr) -> Expr:
    """x*q; numbers are multiplied here, since a kernel would do it in f32."""
    if q == ONE:
        return x
    if isinstance(x, Const) and isinstance(q, Const):
        return Const(float(x.value) * float(q.value))
    return call("mul", x, q)


def _split(x: Expr, c: Expr, q: float) -> Expr:
    """x*c, or x*q where that is large."""
    y, large = _times(x, c), _times(x, Const(q))
    if isinstance(y, Const):
        return y if abs(y.value) <= LIMIT else large
    return call("where", call("le", call("abs", y), Const(LIMIT)), y, large)


def _in_elements(y: Expr, unit: Expr) -> Expr | None:
    """y / unit, by the scales of its leaves."""

    def leaf(x: Expr, c: Expr) -> Expr | None:
        q = ratio(c, unit)
        return None if q is None else _times(x, Const(q))

    return leaves_to(y, leaf)
