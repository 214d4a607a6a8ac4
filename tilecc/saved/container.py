"""The file: one line that says what it is, then a zip archive of texts, binaries and a manifest.

    tilecc kernel, format 1, 41234 bytes, sha256 9f86d08...

The line's length and checksum are those of all that follows it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tilecc.errors import Diagnostic, LoadError

FORMAT = 1
MANIFEST = "manifest.json"
_HEAD = re.compile(rb"tilecc kernel, format (\d{1,9}), (\d{1,15}) bytes, sha256 ([0-9a-f]{64})\n")
_START = b"tilecc kernel, format "
_LONGEST_HEAD = 160
# Members have this time, so that the same kernel makes the same file.
_TIME = (1980, 1, 1, 0, 0, 0)


def write(
    path: str | os.PathLike[str], manifest: Mapping[str, Any], members: Mapping[str, bytes]
) -> None:
    """Write a file whole or not at all: under another name in the same folder, which then changes.

    Raises:
        LoadError: it cannot be written there.
    """
    buffer = io.BytesIO()
    texts = {MANIFEST: json.dumps(manifest, indent=1, allow_nan=False).encode(), **members}
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in texts.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_DEFLATED)
    body = buffer.getvalue()
    digest = hashlib.sha256(body).hexdigest()
    head = f"tilecc kernel, format {FORMAT}, {len(body)} bytes, sha256 {digest}\n".encode()
    target = os.fspath(path)
    temporary = f"{target}.{secrets.token_hex(4)}.part"
    try:
        with open(temporary, "xb") as f:
            f.write(head + body)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, target)
    except OSError as e:
        raise LoadError(f"cannot write {target}: {e.strerror}") from e
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the members of a file.

    Raises:
        LoadError: it cannot be read, was not written by `write`, or is not what was written.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as f:
            data = f.read()
    except OSError as e:
        raise LoadError(f"cannot read {name}: {e.strerror}") from e
    body = _checked(name, data)
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            members = {n: archive.read(n) for n in archive.namelist()}
        manifest = json.loads(members.pop(MANIFEST))
    except (KeyError, ValueError, zipfile.BadZipFile) as e:
        raise unreadable(name, e) from e
    if not isinstance(manifest, dict):
        raise unreadable(name, ValueError("its manifest is no object"))
    return manifest, members


def _checked(name: str, data: bytes) -> bytes:
    """What follows the first line, if that says so."""
    found = _HEAD.match(data)
    if found is None:
        if data and (data.startswith(_START) or _START.startswith(data[: len(_START)])):
            raise _damaged(name, f"its first line is cut off or changed ({len(data)} bytes)")
        hint = "files are written by kernel.save(...); tilecc.compile takes specs and IR"
        raise LoadError(Diagnostic(f"{name} is no kernel that tilecc saved", None, hint))
    version, length, digest = int(found[1]), int(found[2]), found[3].decode()
    if version > FORMAT:
        message = f"{name} has format {version}, and this tilecc reads formats up to {FORMAT}"
        raise LoadError(
            Diagnostic(message, None, "upgrade tilecc, or save the kernel anew with it")
        )
    body = data[found.end() :]
    if len(body) != length:
        raise _damaged(name, f"{len(body)} of {length} bytes follow its first line")
    if hashlib.sha256(body).hexdigest() != digest:
        raise _damaged(name, "its checksum does not match")
    return body


def _damaged(name: str, what: str) -> LoadError:
    return LoadError(Diagnostic(f"{name} is damaged: {what}", None, "copy or save it anew"))


def unreadable(name: str, e: Exception) -> LoadError:
    """For a file with a right checksum and contents that `write` does not make."""
    return LoadError(f"{name} was not written by kernel.save(...): {type(e).__name__}: {e}")
