"""Where the database is; nothing is imported for it, nor opened, unless there is one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilecc.pipeline import Compilation
    from tilecc.target import Target
    from tilecc.tuning.answers import Answers

VARIABLE = "TILECC_DB"


def default_path() -> Path:
    """TILECC_DB, or a file in the user's cache."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "tilecc" / "tuned.db"


def remembered(target: Target) -> Callable[[Compilation], Answers | None] | None:
    """What looks programs up in the database; None if there is no such file."""
    path = default_path()
    if not path.exists():
        return None
    from tilecc.tuning.answers import answers
    from tilecc.tuning.database import Database

    def look_up(run: Compilation) -> Answers | None:
        with Database(path) as db:
            return answers(run, target, db)

    return look_up
