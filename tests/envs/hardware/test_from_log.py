"""Requests of a log in cells, the search for a plane, and what a log's steps held."""

from __future__ import annotations

import numpy as np
import pytest

from envs.hardware.errors import MeasurementError
from envs.hardware.from_log import make_cells, nearest_law, ranges
from envs.hardware.profile import StepLaw

RNG = np.random.default_rng(5)


def times(n, ttft=0.2, tpot=0.01):
    return np.tile([ttft, tpot], (n, 1))


def test_cells_hold_like_loads_and_like_prompts_and_every_usable_request():
    prompt, load = RNG.integers(10, 4000, 400), RNG.integers(0, 60, 400)
    cells = make_cells(prompt, load, times(400))
    assert len(cells) == 16
    assert (cells.index >= 0).all()
    for row, (low, high), (short, long) in zip(range(16), cells.load, cells.prompt, strict=True):
        own = cells.index == row
        assert load[own].min() == low
        assert load[own].max() == high
        assert prompt[own].min() == short
        assert prompt[own].max() == long
    assert sum(row["requests"] for row in cells.rows()) == 400
    # Loads of two levels do not overlap.
    spans = sorted({tuple(span) for span in cells.load.tolist()})
    assert max(high for low, high in spans if low < 10) < min(low for low, _ in spans if low > 20)


def test_means_are_geometric_and_skip_what_is_not_known():
    cells = make_cells(RNG.integers(10, 4000, 100), RNG.integers(0, 60, 100), times(100))
    measured = times(100)
    own = np.flatnonzero(cells.index == 0)
    measured[own, 0] = 0.1
    measured[own[0], 0] = 0.4
    measured[own[1]] = np.nan
    found = cells.means(measured)
    assert found[0, 0] == pytest.approx(0.1 * 4.0 ** (1 / (len(own) - 1)))
    assert found[0, 1] == pytest.approx(0.01)


def test_a_request_without_times_is_in_no_cell():
    known = times(120)
    known[:20, 1] = np.nan
    cells = make_cells(RNG.integers(10, 4000, 120), RNG.integers(0, 60, 120), known)
    assert (cells.index[:20] == -1).all()


def test_what_does_not_differ_is_not_cut():
    prompt, load = RNG.integers(10, 4000, 200), RNG.integers(0, 60, 200)
    one_length = make_cells(np.full(200, 512), load, times(200))
    assert one_length.one_length
    assert not one_length.one_level
    assert len(one_length) > 5
    one_level = make_cells(prompt, np.full(200, 8), times(200))
    assert one_level.one_level
    assert len(one_level) > 5


def test_requests_that_are_all_alike_or_too_few_are_refused():
    with pytest.raises(MeasurementError, match=r"requests of 1 kinds .* expected at least 5"):
        make_cells(np.full(200, 512), np.full(200, 8), times(200))
    with pytest.raises(MeasurementError, match=r"40 requests with TTFT and TPOT .* expected at least 50"):
        make_cells(RNG.integers(10, 4000, 40), RNG.integers(0, 60, 40), times(40))


def test_the_search_finds_a_plane_and_leaves_what_is_0():
    truth = StepLaw(0.0, 0.012, 4e-5, 1e-10, 2e-5, 8e-8)
    work = [(0, 0, b, b * kv) for b in (1, 8, 64) for kv in (100, 4000)] + [(n, n * n / 2, 0, 0) for n in (100, 4000)]

    def distance(law):
        return float(np.mean([abs(np.log(law.seconds(*w) / truth.seconds(*w))) for w in work]))

    start = StepLaw(0.0, 0.02, 6e-5, 1e-10, 2e-5, 1.2e-7)
    found = nearest_law(start, distance)
    assert found.floor_s == 0.0
    assert distance(found) < 0.02 < distance(start)


def test_the_range_is_what_decoded_at_once():
    first, end = np.array([1.0, 2.0, 10.0]), np.array([4.0, 5.0, 11.0])
    prompt, output = np.array([100, 300, 200]), np.array([20, 40, 10])
    found = ranges(first, end, prompt, output, workers=1)
    assert found["new_tokens"] == [100, 300]
    assert found["sequences"] == [1, 2]
    assert found["kv_tokens"] == [100, 430]
    assert ranges(first, end, prompt, output, workers=2)["sequences"] == [1, 1]
