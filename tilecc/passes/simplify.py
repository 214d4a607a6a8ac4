"""The simplify pass: composites written out, scales and factors moved to where they cost least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilecc.errors import CompileError, Diagnostic, Loc
from tilecc.ir.core import Func
from tilecc.passes.base import Remarks
from tilecc.passes.rewrite import composite, hoist, scalar, scale
from tilecc.passes.rewrite.engine import Rewriter, Rule
from tilecc.passes.rewrite.lift import lift
from tilecc.passes.rewrite.lower import lower
from tilecc.passes.rewrite.terms import Terms

RULES: tuple[Rule, ...] = (*scalar.RULES, *composite.RULES, *scale.RULES, *hoist.RULES)
# Each phase runs to its fixed point before the next.
FINAL: tuple[Rule, ...] = tuple(scale.FINAL_RULES)
PHASES: tuple[tuple[Rule, ...], ...] = (RULES, (*RULES, *scale.LATE_RULES), FINAL)


@dataclass(frozen=True)
class Simplify:
    """Rewrites a graph by rules that keep its meaning, until none applies, and fuses its maps.

    %s = contract %q, %k over d
    %x = map %s * rsqrt(D)
    %p = softmax %x over j
    %o = contract %p, %v over j
    -->                                       (c = rsqrt(D) * log2(e), written out)
    %s = contract %q, %k over d
    %m = reduce max %s over j
    %g = map where(%m == -inf, 0.0, %m) * c
    %p = map exp2(%s * c - %g)
    %o = contract %p, %v over j
    %l = reduce sum %p over j
    %o_1 = map %o * where(%l == 0.0, 0.0, 1.0 / %l)
    """

    name: ClassVar[str] = "simplify"

    def apply(self, func: Func, remarks: Remarks) -> Func:
        """`func` simplified (graph IR).

        Raises:
            CompileError: it is of another level.
        """
        if func.level != "graph":
            hint = "it comes before fuse; what follows can be run without it"
            raise CompileError(
                Diagnostic(f"simplify takes graph IR, and this is {func.level} IR", func.loc, hint)
            )
        terms = Terms()
        roots = lift(func, terms)
        done: dict[tuple[str, Loc | None], None] = {}
        missed: dict[tuple[str, Loc | None], None] = {}
        for rules in PHASES:
            rewriter = Rewriter(terms, rules)
            roots = rewriter.run(roots)
            done |= rewriter.remarks
            if rules is not FINAL:
                missed = rewriter.missed
        for message, loc in [*done, *missed]:
            remarks.add(message, loc)
        return lower(func, roots)
