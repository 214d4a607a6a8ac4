"""Which names axes and extents may have."""

from __future__ import annotations

# Words with a meaning of their own in the IR's text.
RESERVED = {
    *("acc", "old", "over", "repair", "pad", "clip", "carry", "where", "in"),
    *("index", "cast", "inf", "nan", "true", "false"),
}


def axis_name_fault(name: object) -> str:
    """Why an axis cannot be called `name`; nothing if it can."""
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
        return f"{name!r} is not a name that an axis can have"
    return f"the axis name '{name}' is a word of the IR" if name in RESERVED else ""
