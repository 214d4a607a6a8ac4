"""What each pass makes of the examples, as text that people can read: tests/golden/.

After a change that is meant, `pytest tests/test_golden.py --update-golden`, and read the diff.
"""

from pathlib import Path

import pytest
from programs import compiled

from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.pipeline import DEFAULT_PIPELINE, parse_pipeline

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = [
    "attention",
    "causal",
    "sliding_window",
    "padding_mask",
    "gqa",
    "sink",
    "with_lse",
    "logsumexp_of_product",
    "normalised_linear",
    "sigmoid_attention",
]
STAGES = ["graph", *(p.name for p in parse_pipeline(DEFAULT_PIPELINE))]
CASES = [(name, stage) for name in EXAMPLES for stage in STAGES]
# Passes that run where they are asked for, and the pipeline that they are shown in.
OPTIONAL = {
    "split": "simplify,fuse,online-softmax,mask-tiles,exponents,split,tile",
    "tensor": "simplify,fuse,online-softmax,mask-tiles,exponents,tensor,tile",
}
CASES += [(name, "split") for name in ("causal", "with_lse")]
CASES.append(("causal", "tensor"))


def text_of(name, stage):
    """The program after a pass, and what the pass remarked."""
    run = compiled(name, pipeline=OPTIONAL.get(stage, DEFAULT_PIPELINE))
    remarks = [f"# {r.pass_name}: {r.message}\n" for r in run.remarks if r.pass_name == stage]
    return "".join([run.stage(stage).text(locs=False), *remarks])


def path_of(name, stage):
    number = f"{STAGES.index(stage)}-" if stage in STAGES else ""
    return GOLDEN / name / f"{number}{stage}.tcir"


@pytest.mark.parametrize(("name", "stage"), CASES)
def test_golden(name, stage, request):
    text, path = text_of(name, stage), path_of(name, stage)
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), "no golden text: run pytest --update-golden"
    assert text == path.read_text(encoding="utf-8"), f"{path} differs: --update-golden if meant"


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("*/*.tcir")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_golden_texts_can_be_read_back(path):
    text = path.read_text(encoding="utf-8")
    code = "".join(s for s in text.splitlines(True) if not s.startswith("#"))
    assert print_ir(parse_ir(text, str(path))) == code


def test_no_golden_text_is_left_over():
    assert {p for p in GOLDEN.glob("**/*") if p.is_file()} == {path_of(*c) for c in CASES}
