"""The CUDA part of a saved kernel: sources and binaries by kernel and architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilecc.codegen.program import DeviceProgram
from tilecc.ir.core import Value
from tilecc.runtime.cuda.images import Image
from tilecc.runtime.cuda.library import DeviceLibrary, stand_ins
from tilecc.saved.encode import Data, device_data, device_from

Put = Any  # (name, data) -> the member's path


def device_members(
    library: DeviceLibrary, archs: Sequence[str], values: Sequence[Value], put: Put
) -> Data:
    """How each kernel of a program is launched, with a source and, for each architecture, a cubin
    and PTX for it and for each kernel that stands in for it."""
    kernels = []
    for k in library.program.kernels:
        code = []
        for each in stand_ins(k):
            images = []
            for arch in archs:
                b = library.binary(each, arch)
                for kind, data in (("cubin", b.cubin), ("ptx", b.ptx)):
                    member = put(f"{each.name}.{arch}.{kind}", data)
                    images.append([arch, kind, list(b.version), member])
            source = put(f"{each.name}.cu", each.source)
            code.append({"name": each.name, "source": source, "images": images})
        kernels.append({"launch": device_data(k, values), "code": code})
    return {
        "arch": library.program.arch,
        "cuda": kernels,
        "resources": [r.to_json() for r in library.resources()],
    }


def device_program(
    data: Data, members: Mapping[str, bytes], values: Sequence[Value]
) -> tuple[DeviceProgram, dict[str, list[Image]]]:
    """The kernels of `device_members`, and the binaries of each by name."""
    kernels = []
    images: dict[str, list[Image]] = {}
    for k in data["cuda"]:
        sources = [members[c["source"]].decode() for c in k["code"]]
        kernels.append(device_from(k["launch"], values, sources))
        for c in k["code"]:
            images[c["name"]] = [
                Image(arch, kind, (int(version[0]), int(version[1])), members[member])
                for arch, kind, version, member in c["images"]
            ]
    return DeviceProgram(tuple(kernels), data["arch"]), images


def device_text(data: Data, members: Mapping[str, bytes], kind: str) -> str:
    """The kernels' "cuda", or "ptx" for the architecture that they were generated for."""
    found = []
    for k in data["cuda"]:
        first = k["code"][0]
        if kind == "cuda":
            found.append(first["source"])
        else:
            found += [
                m for arch, what, _, m in first["images"] if (arch, what) == (data["arch"], kind)
            ]
    return "\n".join(members[m].decode() for m in found)
