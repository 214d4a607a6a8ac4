"""The search on a made-up machine, where what is fast is known."""

import math
import random

import pytest

from tilecc.tuning.assign import assign
from tilecc.tuning.config import Config
from tilecc.tuning.events import spearman
from tilecc.tuning.learned import Learned
from tilecc.tuning.points import Point
from tilecc.tuning.search import Limits, Search


def machine(seed=0):
    """Points with predictions, and the true seconds: the model does not know of one effect."""
    rng = random.Random(seed)
    points, true = [], {}
    for i in (16, 32, 64, 128):
        for j in (32, 64, 128, 256, 512):
            for mr in (4, 6, 8, 12):
                base = 1 + abs(math.log2(i) - 6) * 0.1 + abs(math.log2(j) - 7) * 0.05
                unknown = 0.08 * abs(math.log2(mr) - 2.6) * (3 if i == 64 else 1)
                config = Config.of({"i": i, "j": j}, {"mr": mr})
                features = {"i": math.log2(i), "j": math.log2(j), "mr": math.log2(mr)}
                points.append(Point(config, "", base * rng.uniform(0.98, 1.02), features))
                true[config] = base + unknown
    return sorted(points, key=lambda p: p.seconds), true


def run(points, true, limits, seed=0, batch=4):
    search = Search(points, limits, seed)
    order = []
    while found := search.propose(batch):
        order += found
        for c in found:
            search.result(c, true[c])
    return search, order


def test_what_the_model_does_not_know_is_learned_from_few_trials():
    points, true = machine()
    search, order = run(points, true, Limits(trials=24, gain=0.0))
    best = min(true.values())
    assert len(order) == len(set(order)) == 24
    assert best / search.ranking()[0][1] > 0.97
    by_prediction = min(true[p.config] for p in points[:24])
    assert search.ranking()[0][1] <= by_prediction


def test_the_search_ends_when_little_is_expected():
    points, true = machine()
    search, order = run(points, true, Limits(trials=80, gain=0.01))
    assert "expected gain" in search.ended and len(order) < 60
    assert min(true.values()) / search.ranking()[0][1] > 0.97
    limited, _ = run(points, true, Limits(trials=5))
    assert limited.ended == "5 trials" and len(limited.measured) == 5
    everything, _ = run(points[:7], true, Limits(trials=80, gain=0.0))
    assert everything.ended == "all of the space is measured"


def test_the_same_measurements_give_the_same_search():
    points, true = machine()
    orders = [run(points, true, Limits(trials=20, gain=0), seed=s)[1] for s in (3, 3, 4)]
    assert orders[0] == orders[1] != orders[2]


def test_failures_are_not_proposed_again_and_do_not_end_it():
    points, true = machine()
    search = Search(points, Limits(trials=20, gain=0.0))
    seen = []
    while found := search.propose(4):
        for n, c in enumerate(found):
            search.result(c, None if n % 2 else true[c], "crashed")
        seen += found
    assert len(seen) == len(set(seen)) == 20 and len(search.failed) == 10


def test_what_is_known_is_not_measured_again():
    points, true = machine()
    search = Search(points, Limits(trials=10, gain=0.0))
    for p in points[:5]:
        search.known(p.config, true[p.config])
    search.known(Config.of({"z": 1}), 0.001)  # of another space
    found = search.propose(4)
    assert not set(found) & {p.config for p in points[:5]}
    assert len(search.measured) == 5


def test_expected_seconds_follow_the_measurements():
    points, true = machine()
    learned = Learned(points, 0)
    rng = random.Random(0)
    measured = {p.config: true[p.config] for p in rng.sample(points, 30)}
    expected = learned.expected(measured)
    rest = [p.config for p in points if p.config not in measured]
    before = [p.seconds for p in points if p.config not in measured]
    rho = spearman([expected[c] for c in rest], [true[c] for c in rest])
    assert rho > 0.7 and rho > spearman(before, [true[c] for c in rest])


def test_spearman():
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486832980505138)
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_few_configurations_serve_many_shapes():
    a, b, c = (Config.of({"i": n}) for n in (1, 2, 3))
    times = [{a: 1.0, b: 1.02, c: 2.0}, {b: 1.0, c: 1.01}, {a: 3.0, c: 1.0, b: 1.5}, {}]
    assert assign(times, 0.03) == [a, c, c, None]
    assert assign(times, 0.0) == [a, b, c, None]
    assert assign(times, 1.0) == [b, b, b, None]
    assert assign([{}], 0.1) == [None]


def test_many_configurations_are_covered_greedily():
    configs = [Config.of({"i": n}) for n in range(1, 40)]
    times = [{c: 1.0 + (n + k) % 5 for k, c in enumerate(configs)} for n in range(10)]
    found = assign(times, 0.0)
    assert all(t[c] == 1.0 for t, c in zip(times, found, strict=True)) and len(set(found)) == 5
