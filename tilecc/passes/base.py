"""What every pass shares: its form, and the remarks it leaves for the user."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from tilecc.errors import Loc
from tilecc.ir.core import Func


@dataclass(frozen=True)
class Remark:
    """Something a pass tells the user: why it did, or did not do, a thing, and on which line."""

    pass_name: str
    message: str
    loc: Loc | None = None

    def __str__(self) -> str:
        where = f"{self.loc}: " if self.loc else ""
        return f"{where}{self.pass_name}: {self.message}"


@dataclass
class Remarks:
    """A log of remarks; the pass manager sets `pass_name` before each pass."""

    pass_name: str = ""
    items: list[Remark] = field(default_factory=list)
    details: list[Remark] = field(default_factory=list)
    """What only who asks wants to know: why things are as one would expect (`tilecc explain`)."""

    def add(self, message: str, loc: Loc | None = None) -> None:
        """Note a remark of the pass that runs."""
        self.items.append(Remark(self.pass_name, message, loc))

    def detail(self, message: str, loc: Loc | None = None) -> None:
        """Note why something went as usual."""
        self.details.append(Remark(self.pass_name, message, loc))


class Pass(Protocol):
    """A frozen dataclass with a name; its other fields are its options (`tile{i=64}`)."""

    name: ClassVar[str]

    def apply(self, func: Func, remarks: Remarks) -> Func:
        """What the pass makes of `func`, which stays as it is."""
        ...
