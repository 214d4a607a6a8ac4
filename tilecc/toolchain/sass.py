"""Machine code as nvdisasm reads it: a listing for people, instructions for the resource report."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilecc.errors import CompileError
from tilecc.toolchain.packages import find

BYTES = 16  # of an instruction, since sm_70


@dataclass(frozen=True)
class Instruction:
    """One instruction: its address in the function, predicate ("@!P0" or ""), opcode, operands."""

    address: int
    predicate: str
    opcode: str
    operands: str

    @property
    def base(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def target(self) -> int | None:
        """Where a direct branch goes."""
        last = self.operands.rpartition(",")[2]
        return int(last, 16) if self.base == "BRA" and last.startswith("0x") else None


def disassemble(cubin: bytes) -> dict[str, list[Instruction]]:
    """The instructions of each function of a cubin.

    Raises:
        CompileError: nvdisasm is not installed, or cannot read the cubin.
    """
    _, functions = json.loads(_nvdisasm(cubin, "--emit-json"))
    return {
        f["function-name"]: [
            Instruction(k * BYTES, i.get("predicate", ""), i["opcode"], i.get("operands", ""))
            for k, i in enumerate(f["sass-instructions"])
        ]
        for f in functions
    }


def listing(cubin: bytes) -> str:
    """The code of a cubin as text, with the lines of the CUDA source.

    Raises:
        CompileError: nvdisasm is not installed, or cannot read the cubin.
    """
    return _nvdisasm(cubin, "--print-code", "--print-line-info")


def _nvdisasm(cubin: bytes, *flags: str) -> str:
    return _run([str(find("nvdisasm")), *flags], cubin)


def _run(command: Sequence[str], cubin: bytes) -> str:
    with tempfile.TemporaryDirectory(prefix="tilecc-") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        done = subprocess.run([*command, str(path)], capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"nvdisasm cannot read the cubin: {done.stderr.strip()}")
    return done.stdout
