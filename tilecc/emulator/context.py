"""Operands of decoded instructions: where values come from and where results go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tilecc.emulator.operands import FloatImm, Imm, Operand, Pair, Reg, Stack, Symbol, Vector
from tilecc.emulator.ptx import Function, Instruction
from tilecc.emulator.special import SPECIAL
from tilecc.emulator.stacks import Registers
from tilecc.emulator.types import SIGNED, TYPES, UNSIGNED, Array, EmulatorError, Type

if TYPE_CHECKING:
    from tilecc.emulator.access import Site
    from tilecc.emulator.machine import Strand

Mask: TypeAlias = Array | None
Source: TypeAlias = "Callable[[Strand], Array]"
Sink: TypeAlias = "Callable[[Strand, Mask, Array], None]"


class UnknownInstruction(EmulatorError):
    """An opcode, a modifier or a form of operands that the emulator does not know."""

    def __init__(self, ins: Instruction, what: str) -> None:
        super().__init__(f"PTX line {ins.line}: {what}: {ins.text}")


@dataclass(frozen=True)
class Context:
    """What decoders know of a function: its registers and where its variables lie."""

    function: Function
    index: Mapping[str, int]
    """Position of each register."""
    symbols: Mapping[str, int]
    """Address of each variable within its state space."""
    params: int
    """Bytes of the kernel's parameters."""
    sites: list[Site] = field(default_factory=list)
    """Memory instructions, as they are decoded."""
    uncertain: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """Of `Flow`: which reads of registers must be checked."""
    tracked: frozenset[str] = frozenset()
    """Registers of which it is kept where they are assigned."""
    local: frozenset[str] = frozenset()
    """Of `Flow`: registers that need not be kept for threads that do not execute."""

    def site(self, ins: Instruction, direction: str, width: int, count: int) -> Site:
        """Counters for a memory instruction."""
        from tilecc.emulator.access import Site

        self.sites.append(Site(ins, direction, width, count))
        return self.sites[-1]

    def source(self, ins: Instruction, operand: Operand, t: Type) -> Source:
        """Reads an operand as values of a type; a wider register's low bits."""
        if isinstance(operand, Reg):
            return self._register(ins, operand, t)
        if isinstance(operand, Vector):
            return self._packed(ins, operand, t)
        if isinstance(operand, Stack):
            return self._stacked(ins, operand, t)
        value = self.constant(ins, operand, t)
        return lambda s: value

    def constant(self, ins: Instruction, operand: Operand, t: Type) -> Array:
        """A literal or an address as a value of a type, of no dimensions."""
        if isinstance(operand, FloatImm):
            if t.bits not in (32, 64) or t.kind == "x2":
                raise UnknownInstruction(ins, "a floating-point literal of another type")
            value = np.array(operand.bits, f"uint{operand.width}").view(f"float{operand.width}")
            if t.kind == "f" and t.bits != operand.width:
                return value.astype(t.dtype)
            bits = np.array(operand.bits, f"uint{operand.width}")
            return bits.view(t.dtype) if t.bits == operand.width else bits.astype(t.dtype)
        if isinstance(operand, Symbol):
            if operand.name not in self.symbols:
                raise UnknownInstruction(ins, f"unknown name {operand.name}")
            number = self.symbols[operand.name] + operand.offset
        elif isinstance(operand, Imm):
            number = operand.value
        else:
            raise UnknownInstruction(ins, "unexpected operand")
        if t.kind == "p":
            return np.array(bool(number))
        bits = np.array(number % (1 << t.bits), f"uint{t.bits}")
        if t.kind == "f":
            raise UnknownInstruction(ins, "an integer for a floating-point operand")
        return bits.view(t.dtype)

    def _register(self, ins: Instruction, operand: Reg, t: Type) -> Source:
        if operand.name not in self.index:
            return self._special(ins, operand, t)
        i = self.index[operand.name]
        stored = self.function.registers[operand.name].storage
        if operand.negated:
            if stored != np.bool_ or t.kind != "p":
                raise UnknownInstruction(ins, "'!' before what is no predicate")
            return lambda s: ~s.R[i]
        view = self._view(ins, operand, t)
        if view is None:
            return lambda s: s.R[i]
        return lambda s: view(s.R[i])

    def _view(self, ins: Instruction, operand: Reg, t: Type) -> Callable[[Array], Array] | None:
        """What a register is kept as to values of a type; None: it is kept as that."""
        stored = self.function.registers[operand.name].storage
        if (t.kind == "p") != (stored == np.bool_):
            raise UnknownInstruction(ins, f"{operand.name} is of the wrong type")
        dtype = t.dtype
        if stored == dtype:
            return None
        if stored.itemsize == dtype.itemsize:
            return lambda x: x.view(dtype)
        if stored.itemsize < dtype.itemsize:
            raise UnknownInstruction(ins, f"{operand.name} is too narrow")
        low = np.dtype(f"uint{t.bits}")
        whole = np.dtype(f"uint{8 * stored.itemsize}")
        return lambda x: x.view(whole).astype(low).view(dtype)

    def registers(self, operand: Stack) -> Registers:
        """Of a stack of registers where each is."""
        names = [e.name for e in operand.elements if isinstance(e, Reg)]
        return Registers(tuple(self.index[n] for n in names))

    def _stacked(self, ins: Instruction, operand: Stack, t: Type) -> Source:
        """(instructions, warps, 32), or what broadcasts to it."""
        first = operand.elements[0]
        if all(e == first for e in operand.elements):
            return self.source(ins, first, t)
        if not isinstance(first, Reg):
            values = [self.constant(ins, e, t) for e in operand.elements]
            column = np.stack(values).reshape(-1, 1, 1)
            return lambda s: column
        together, view = self.registers(operand), self._view(ins, first, t)
        if view is None:
            return together.gather
        return lambda s: view(together.gather(s))

    def _special(self, ins: Instruction, operand: Reg, t: Type) -> Source:
        name = operand.name
        if name not in SPECIAL:
            raise UnknownInstruction(ins, f"unknown register {name}")
        if t.bits < 32 or t.kind == "f":
            raise UnknownInstruction(ins, f"{name} is of another type")
        return lambda s: s.special[name].astype(t.dtype)

    def _packed(self, ins: Instruction, operand: Vector, t: Type) -> Source:
        """{a, b}: elements from low bits to high."""
        n = len(operand.elements)
        part = TYPES.get(f"b{t.bits // n}")
        if part is None or t.kind == "p":
            raise UnknownInstruction(ins, "a vector of this length")
        parts = [self.source(ins, e, part) for e in operand.elements]
        whole = np.dtype(f"uint{t.bits}")

        def pack(s: Strand) -> Array:
            out = parts[0](s).astype(whole)
            for k in range(1, n):
                out = out | parts[k](s).astype(whole) << whole.type(k * part.bits)
            return np.ascontiguousarray(out).view(t.dtype)

        return pack

    def sources(self, ins: Instruction, t: Type, first: int = 1) -> list[Source]:
        """The operands from `first` on, all of one type."""
        return [self.source(ins, o, t) for o in ins.operands[first:]]

    def sink(self, ins: Instruction, operand: Operand, t: Type) -> Sink:
        """Writes values of a type to a register; a wider one is sign- or zero-extended."""
        if isinstance(operand, Vector):
            return self._unpacked(ins, operand, t)
        if isinstance(operand, Stack):
            return self._unstacked(ins, operand, t)
        if not isinstance(operand, Reg) or operand.negated:
            raise UnknownInstruction(ins, "the result is no register")
        if operand.name == "_":
            return lambda s, m, out: None
        if operand.name not in self.index:
            raise UnknownInstruction(ins, f"unknown register {operand.name}")
        i, keep = self.index[operand.name], self._keep(ins, operand, t)
        if operand.name in self.local:
            if keep is None:
                return lambda s, m, out: s.put(i, out)
            return lambda s, m, out: s.put(i, keep(out))
        if keep is None:
            return lambda s, m, out: s.write(i, out, m)
        return lambda s, m, out: s.write(i, keep(out), m)

    def _keep(self, ins: Instruction, operand: Reg, t: Type) -> Callable[[Array], Array] | None:
        """Values of a type to what a register is kept as; None: it is kept as that."""
        stored = self.function.registers[operand.name].storage
        if (stored == np.bool_) != (t.kind == "p") or 8 * stored.itemsize < t.bits:
            raise UnknownInstruction(ins, f"{operand.name} is of the wrong type")
        if 8 * stored.itemsize > t.bits:
            wide = (SIGNED if t.kind == "s" else UNSIGNED)[8 * stored.itemsize]
            narrow = t.dtype if t.kind in "us" else np.dtype(f"uint{t.bits}")
            return lambda out: out.view(narrow).astype(wide).view(stored)
        return None if stored == t.dtype else lambda out: out.view(stored)

    def _unstacked(self, ins: Instruction, operand: Stack, t: Type) -> Sink:
        """Takes (instructions, warps, 32), or what broadcasts to it."""
        first = operand.elements[0]
        if not isinstance(first, Reg):
            raise UnknownInstruction(ins, "the result is no register")
        together, keep = self.registers(operand), self._keep(ins, first, t)
        if first.name in self.local:
            if keep is None:
                return lambda s, m, out: together.put(s, out, None)
            return lambda s, m, out: together.put(s, keep(out), None)
        if keep is None:
            return lambda s, m, out: together.put(s, out, m)
        return lambda s, m, out: together.put(s, keep(out), m)

    def together(self, ins: Instruction, elements: Sequence[Operand], t: Type) -> Source:
        """Reads several operands: (operands, warps, 32)."""
        if self._alike(elements) and len(set(elements)) > 1:
            return self.source(ins, Stack(tuple(elements)), t)
        sources = [self.source(ins, e, t) for e in elements]
        return lambda s: np.stack([np.broadcast_to(f(s), s.shape) for f in sources])

    def apart(self, ins: Instruction, elements: Sequence[Operand], t: Type) -> Sink:
        """Writes (operands, warps, 32) to several operands."""
        if self._alike(elements) and len(elements) > 1 and len(set(elements)) == len(elements):
            return self.sink(ins, Stack(tuple(elements)), t)
        sinks = [self.sink(ins, e, t) for e in elements]

        def put(s: Strand, m: Mask, out: Array) -> None:
            for sink, x in zip(sinks, out, strict=True):
                sink(s, m, x)

        return put

    def _alike(self, elements: Sequence[Operand]) -> bool:
        """Whether these are registers that can be stacked."""
        names = [e.name for e in elements if isinstance(e, Reg) and not e.negated]
        if len(names) < len(elements) or any(n not in self.index for n in names):
            return False
        kinds = {(self.function.registers[n].storage, n in self.local) for n in names}
        return len(kinds) == 1

    def _unpacked(self, ins: Instruction, operand: Vector, t: Type) -> Sink:
        n = len(operand.elements)
        part = TYPES.get(f"b{t.bits // n}")
        if part is None:
            raise UnknownInstruction(ins, "a vector of this length")
        sinks = [self.sink(ins, e, part) for e in operand.elements]
        whole = np.dtype(f"uint{t.bits}")

        def unpack(s: Strand, m: Mask, out: Array) -> None:
            bits = out.view(whole)
            for k, sink in enumerate(sinks):
                sink(s, m, (bits >> whole.type(k * part.bits)).astype(part.dtype))

        return unpack

    def pair(self, ins: Instruction, t: Type, second: Type) -> tuple[Sink, Sink | None]:
        """The sinks of d or d|p."""
        first = ins.operands[0]
        if isinstance(first, Pair):
            return self.sink(ins, first.first, t), self.sink(ins, first.second, second)
        return self.sink(ins, first, t), None
