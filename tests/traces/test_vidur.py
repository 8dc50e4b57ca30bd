from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.traces.samples import write
from tests.traces.samples_public import VIDUR, VIDUR_TIMES
from traces import TraceError, load_trace


def test_a_file_without_times_gets_none_in_silence(tmp_path: Path) -> None:
    path = write(tmp_path, "lengths.csv", VIDUR)
    with pytest.raises(TraceError, match=r"'trace\.options\.rate_per_s'.*the file has no times"):
        load_trace(path)
    trace = load_trace(path, rate_per_s=2.0)
    assert trace.frame["prompt_tokens"].to_list() == [3772, 2015]
    assert "no times in the file: arrivals drawn, Poisson, 2 requests a second, seed 0" in trace.provenance
    assert trace.sha256 == load_trace(path, rate_per_s=2.0).sha256 != load_trace(path, rate_per_s=2.0, seed=1).sha256


def test_the_drawn_rate_is_the_one_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "lengths.csv", b"num_prefill_tokens,num_decode_tokens\n" + b"5,5\n" * 10_000)
    trace = load_trace(path, rate_per_s=8.0)
    assert trace.rate_per_s == pytest.approx(8.0, rel=0.04)  # four standard deviations
    gaps = np.diff(trace.frame["arrival_s"].to_numpy())
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.05)


def test_recorded_times_are_kept_and_take_no_rate(tmp_path: Path) -> None:
    path = write(tmp_path, "trace.csv", VIDUR_TIMES)
    assert load_trace(path).frame["arrival_s"].to_list() == [0.0, 0.125]
    with pytest.raises(TraceError, match=r"rate_per_s.*the file has times"):
        load_trace(path, rate_per_s=1.0)


@pytest.mark.parametrize("rate", [0, -1.0, float("inf"), float("nan"), "fast", True])
def test_bad_rates(tmp_path: Path, rate: object) -> None:
    with pytest.raises(TraceError, match=r"trace.options.rate_per_s.*expected a number from 1e-09"):
        load_trace(write(tmp_path, "lengths.csv", VIDUR), rate_per_s=rate)


def test_bad_lengths_and_order(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"row 3, column 'num_prefill_tokens': found '-2'"):
        load_trace(write(tmp_path, "a.csv", VIDUR.replace(b"\n2015", b"\n-2")), rate_per_s=1.0)
    late = VIDUR_TIMES.replace(b"\n0.0,", b"\n0.5,")
    with pytest.raises(TraceError, match=r"row 3, column 'arrived_at'.*sort=true"):
        load_trace(write(tmp_path, "b.csv", late))
    assert load_trace(write(tmp_path, "b.csv", late), sort=True).frame["prompt_tokens"].to_list() == [547, 591]
