"""Drawn burstiness beside a held-out window: the verdict, and the band that the window itself allows."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from research.trace_actions.fitting import _show_dispersion
from traces.arrivals import law_from_dict
from traces.describe import dispersion
from traces.generators.burstiness import compare_dispersion, sampling_band

LENGTH_S = 600.0


def poisson(seed: int, rate: float = 4.0, length_s: float = LENGTH_S) -> Any:
    rng = np.random.default_rng(seed)
    return np.sort(rng.random(rng.poisson(rate * length_s)) * length_s)


def compared(held_out: Any) -> dict[str, dict[str, Any]]:
    law = law_from_dict({"family": "poisson", "mean_gap_s": 0.25})
    return compare_dispersion(law, (poisson(1), LENGTH_S), (held_out, LENGTH_S))


def test_a_window_of_the_same_law_is_within() -> None:
    row = compared(poisson(2))["1s"]
    assert row["generated"] == pytest.approx(1, abs=0.02)
    assert row["within"]
    assert row["in_band"]


@pytest.mark.parametrize(("times", "off"), [(3, -2 / 3), (2, -1 / 2)])
def test_a_burstier_window_is_beyond(times: int, off: float) -> None:
    row = compared(np.repeat(poisson(3, 4.0 / times), times))["1s"]
    assert row["off"] == pytest.approx(off, abs=0.06)
    assert row["off"] == pytest.approx(row["generated"] / row["held_out"] - 1, abs=1e-3)
    assert not row["within"]
    assert not row["in_band"]


def test_scales_without_eight_intervals_are_left_out() -> None:
    law = law_from_dict({"family": "poisson", "mean_gap_s": 0.25})
    short = poisson(4, length_s=100.0)
    assert list(compare_dispersion(law, (poisson(1), LENGTH_S), (short, 100.0))) == ["1s", "10s"]
    assert compare_dispersion(law, (poisson(1), LENGTH_S), (short[short < 5], 5.0)) == {}


def test_the_band_holds_the_laws_own_index() -> None:
    """Of windows of Poisson, 95 % or nearly: the true index is 1."""
    held = []
    for seed in range(100):
        low, high = sampling_band(poisson(seed), LENGTH_S, 1.0, np.random.default_rng(seed))
        assert low < (dispersion(poisson(seed), LENGTH_S, 1.0) or 0) < high
        held.append(low < 1 < high)
    assert 0.85 < np.mean(held) < 1


def test_the_verdict_is_printed() -> None:
    console = Console(file=io.StringIO(), width=100)
    row = {"fitted": 2.0, "held_out": 1.0, "bound": 0.15, "band": [0.8, 1.2]}
    _show_dispersion(
        console,
        {
            "1s": row | {"generated": 1.1, "off": 0.1, "within": True, "in_band": True},
            "10s": row | {"generated": 1.18, "off": 0.18, "within": False, "in_band": True},
            "60s": row | {"generated": 0.5, "off": -0.5, "within": False, "in_band": False},
        },
    )
    lines = [" ".join(line.replace("\u2502", " ").split()) for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert [line for line in lines if line.startswith("in ")] == [
        "in 1s intervals 2 1 0.8 to 1.2 1.1 +10.0% within 15% inside",
        "in 10s intervals 2 1 0.8 to 1.2 1.18 +18.0% beyond 15% inside",
        "in 60s intervals 2 1 0.8 to 1.2 0.5 -50.0% beyond 15% outside",
    ]
