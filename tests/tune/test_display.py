"""The progress line, the log, and why the others lost."""

import json

from tilecc.cli.tuning import Display, losers, progress_line
from tilecc.tuning.config import Config
from tilecc.tuning.events import Measurement, Progress, ShapeResult

FAST = Measurement(Config.of({"i": 64}), 0.002, 0.001, details={"error": 1e-7})
SLOW = Measurement(Config.of({"i": 32}), 0.002, 0.0017)
DEAD = Measurement(Config.of({"i": 16}), 0.002, None, "segmentation fault (SIGSEGV)")


def progress(m):
    return Progress({"N": 8}, m, 3, 24, FAST, 1e8, 6.0, 42.0)


def test_the_line_says_how_far_it_is_and_what_is_best():
    assert progress_line(progress(SLOW), 2e11) == (
        "3 of 24; best 1 ms (predicted 2 ms), 100 GFLOP/s, 50% of peak: i=64; 42 s left"
    )
    assert "of peak" not in progress_line(progress(SLOW), 0.0)


def test_each_measurement_is_a_line_of_the_log(tmp_path):
    log = tmp_path / "log.jsonl"
    with Display(0.0, str(log)) as display:
        for m in (FAST, DEAD):
            display.watch(progress(m))
    first, second = map(json.loads, log.read_text().splitlines())
    assert first["seconds"] == 0.001 and first["config"] == {"tile": {"i": 64}, "options": {}}
    assert second["seconds"] is None and second["reason"] == "segmentation fault (SIGSEGV)"
    assert first["sizes"] == {"N": 8} and first["error"] == 1e-7


def test_why_the_others_lost():
    refused = tuple((Config.of({"i": n}), f"needs {n} of 32 registers") for n in (40, 50))
    shape = ShapeResult({}, 1.0, (), (FAST, SLOW, DEAD), refused, None, "3 trials", 1.0)
    assert losers(shape) == [
        "slower: 1, 0 of them by up to 5 %, the slowest 1.7 times",
        "failed: 1: segmentation fault (SIGSEGV)",
        "refused: 2, such as: needs 40 of 32 registers",
    ]
    assert shape.correlation is None and shape.failed == (DEAD,)
