"""docs/zoo.md is what the compiler says today: `python tests/zoo/page.py` writes it anew."""

import re

import pytest
from cases import NAMES as SPECS
from page import NAMES, PAGE, compiled, current, head, quick, row


def test_every_spec_has_a_row():
    assert sorted(NAMES) == SPECS
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^### (\w+)$", text, re.MULTILINE) == NAMES
    assert text.startswith(head())


def test_rows_are_current_but_for_their_formulas():
    """What a spec is, its kernels and the remarks: without sympy all rows take seconds."""
    text = PAGE.read_text(encoding="utf-8")
    for name in NAMES:
        found = current(text, name)
        what, kernels, remarks = quick(name, compiled(name))
        for part in (what, f"\n{kernels}\n", *remarks):
            assert part in found, f"{name}: python tests/zoo/page.py {name}"


# All of them take a minute, nearly all of it sympy's.
SAMPLE = {"bottom_right", "mla", "linear", "paged"}


@pytest.mark.parametrize(
    "name", [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_row_is_current(name):
    text = PAGE.read_text(encoding="utf-8")
    assert row(name) in text
