"""What was measured, and what was chosen: an SQLite file that many processes may share.

Each record is committed on its own, in WAL mode: kill -9 loses at most what was not reported as
saved. Each carries a checksum; what does not match it is as if it were not there. A file that
SQLite calls damaged is set aside, with a message, and a new one begun.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tilecc.tuning.paths import default_path

_BUSY_SECONDS = 60.0  # to wait for another process's transaction
_TABLES = """
CREATE TABLE IF NOT EXISTS trials (
  key TEXT NOT NULL, bucket TEXT NOT NULL, config TEXT NOT NULL, status TEXT NOT NULL,
  body TEXT NOT NULL, sum TEXT NOT NULL, PRIMARY KEY (key, bucket, config));
CREATE TABLE IF NOT EXISTS choices (
  key TEXT NOT NULL, bucket TEXT NOT NULL,
  body TEXT NOT NULL, sum TEXT NOT NULL, PRIMARY KEY (key, bucket));
CREATE TABLE IF NOT EXISTS programs (
  key TEXT PRIMARY KEY, body TEXT NOT NULL, sum TEXT NOT NULL);
"""
T = TypeVar("T")


@dataclass(frozen=True)
class Trial:
    """One configuration in one bucket: "ok" with what was measured, or "failed" with the reason."""

    key: str
    bucket: str
    config: str
    status: str
    seconds: float | None = None
    predicted: float | None = None
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    when: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Chosen:
    """The configuration to use in a bucket, and what it took on how many threads."""

    key: str
    bucket: str
    config: str
    seconds: float
    threads: int
    sizes: dict[str, int] = field(default_factory=dict)
    when: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Known:
    """What a key stands for: a program's canonical text, the machine, and versions."""

    key: str
    name: str
    text: str
    machine: str
    versions: str
    axes: dict[str, str] = field(default_factory=dict)
    """What the program itself calls the axes of its canonical form."""


class Database:
    """Records in one file, which is made when the first is written."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else default_path()
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Writing

    def save(self, *records: Trial | Chosen | Known) -> None:
        """Write records, in one transaction; they are on file when this returns.

        A trial that is known is replaced unless it is "ok" and the new one is not.
        """

        def write(db: sqlite3.Connection) -> None:
            with db:
                for r in records:
                    _insert(db, r)

        self._do(write)

    def delete(self, keys: Iterable[str]) -> int:
        """Forget everything about some keys; gives how many records that were."""
        wanted = [(k,) for k in keys]

        def work(db: sqlite3.Connection) -> int:
            with db:
                before = db.total_changes
                for table in ("trials", "choices", "programs"):
                    db.executemany(f"DELETE FROM {table} WHERE key = ?", wanted)
                return db.total_changes - before

        return self._do(work) if self.path.exists() else 0

    # Reading

    def trials(self, key: str, bucket: str | None = None) -> list[Trial]:
        """What was measured for a key (in one bucket)."""
        return [t for t in self._read(Trial, "trials", key) if bucket in (None, t.bucket)]

    def choices(self, key: str) -> list[Chosen]:
        """What was chosen for a key."""
        return self._read(Chosen, "choices", key)

    def programs(self) -> list[Known]:
        """All keys."""
        return self._read(Known, "programs", None)

    def _read(self, kind: type[T], table: str, key: str | None) -> list[T]:
        if not self.path.exists():
            return []
        where, args = ("", ()) if key is None else (" WHERE key = ?", (key,))
        query = f"SELECT body, sum FROM {table}{where} ORDER BY rowid"
        rows = self._do(lambda db: db.execute(query, args).fetchall())
        found = []
        for body, checksum in rows:
            if _sum(body) == checksum:
                with contextlib.suppress(ValueError, TypeError):
                    found.append(kind(**json.loads(body)))
        return found

    # Whole files

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write everything as lines of JSON; gives how many."""
        lines = [json.dumps({"kind": type(r).__name__, **asdict(r)}) for r in self.everything()]
        Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return len(lines)

    def everything(self) -> Iterator[Trial | Chosen | Known]:
        """All records."""
        yield from self._read(Known, "programs", None)
        yield from self._read(Trial, "trials", None)
        yield from self._read(Chosen, "choices", None)

    def merge(self, path: str | os.PathLike[str]) -> int:
        """Take over what another file holds (a database, or what `export` wrote); gives how many.

        Of two choices for one bucket the faster stays.

        Raises:
            ValueError: the file is neither.
            OSError: it cannot be read.
        """
        records = list(_records(Path(path)))
        known = {(c.key, c.bucket): c for c in self._read(Chosen, "choices", None)}
        kept = []
        for r in records:
            mine = known.get((r.key, r.bucket)) if isinstance(r, Chosen) else None
            if mine is None or (isinstance(r, Chosen) and r.seconds < mine.seconds):
                kept.append(r)
        self.save(*kept)
        return len(kept)

    # The connection

    def _do(self, work: Any) -> Any:
        """`work` on the open file; a damaged one is set aside, and work begins anew."""
        try:
            return work(self._open())
        except sqlite3.OperationalError:
            raise  # locked, read-only, disk full: the file is not at fault
        except sqlite3.DatabaseError as e:
            self._set_aside(e)
            return work(self._open())

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self.path, timeout=_BUSY_SECONDS)
            try:
                db.execute("PRAGMA journal_mode=WAL")
                # A killed process loses nothing that was committed; a power cut may lose the last.
                db.execute("PRAGMA synchronous=NORMAL")
                db.executescript(_TABLES)
            except BaseException:
                db.close()
                raise
            self._connection = db
        return self._connection

    def _set_aside(self, error: Exception) -> None:
        self.close()
        with _lock(self.path):
            if not _damaged(self.path):
                return  # another process has done it
            to = _free_name(self.path)
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}{suffix}", f"{to}{suffix}")
            os.replace(self.path, to)
        warnings.warn(
            f"{self.path} is damaged ({error}): it is kept as {to}, and a new one is begun",
            stacklevel=2,
        )


def _insert(db: sqlite3.Connection, r: Trial | Chosen | Known) -> None:
    body = json.dumps(asdict(r), sort_keys=True)
    if isinstance(r, Trial):
        db.execute(
            "INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key, bucket, config) DO"
            " UPDATE SET status=excluded.status, body=excluded.body, sum=excluded.sum"
            " WHERE excluded.status = 'ok' OR status <> 'ok'",
            (r.key, r.bucket, r.config, r.status, body, _sum(body)),
        )
    elif isinstance(r, Chosen):
        row = (r.key, r.bucket, body, _sum(body))
        db.execute("INSERT OR REPLACE INTO choices VALUES (?, ?, ?, ?)", row)
    else:
        db.execute("INSERT OR REPLACE INTO programs VALUES (?, ?, ?)", (r.key, body, _sum(body)))


def _sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _records(path: Path) -> Iterator[Trial | Chosen | Known]:
    with open(path, "rb") as f:
        head = f.read(16)
    if head.startswith(b"SQLite format 3"):
        with Database(path) as other:
            yield from other.everything()
        return
    kinds = {k.__name__: k for k in (Trial, Chosen, Known)}
    for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found = json.loads(line)
            yield kinds[found.pop("kind")](**found)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise ValueError(f"{path}:{n}: not a record of the tuner ({e})") from e


def _damaged(path: Path) -> bool:
    try:
        db = sqlite3.connect(path, timeout=_BUSY_SECONDS)
        try:
            found: tuple[str] = db.execute("PRAGMA quick_check").fetchone()
            return found != ("ok",)
        finally:
            db.close()
    except sqlite3.OperationalError:
        return False
    except sqlite3.DatabaseError:
        return True


def _free_name(path: Path) -> Path:
    n = 1
    while (to := path.with_name(f"{path.name}.damaged-{n}")).exists():
        n += 1
    return to


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process at a time (where the system has such locks)."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(f"{path}.lock", "w", encoding="ascii") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
