"""Pieces by hand: timing on a made-up GPU, steps taken apart, what a prefill does to TPOT, what the driver says."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import polars as pl
import pytest

from envs.hardware.errors import MeasurementError
from envs.hardware.measure import machine
from envs.hardware.measure.interference import tpot_rise
from envs.hardware.measure.lab import Lab
from envs.hardware.measure.machine import Clocks, number, parse_csv
from envs.hardware.measure.points import NotMeasuredError
from envs.hardware.measure.separate import take_apart
from envs.hardware.measure.sharing import MOST_REPLAYS, overlapped, share_slowdowns, share_sms
from envs.hardware.measure.sharing import REPEATS as BURSTS
from envs.hardware.measure.timing import REPEATS, WARM_UP, summarise, time_calls, warm
from envs.hardware.model_shape import load_model


class MadeUpGpu:
    """As much of torch as timing on a GPU touches; every call takes 2 ms, a flush 50."""

    inference_mode = staticmethod(contextmanager(lambda: iter([None])))
    int8 = "int8"

    def __init__(self):
        self.now_ms, self.log, self.capturing, self.captured = 0.0, [], False, []
        self.cuda = SimpleNamespace(
            Stream=lambda: SimpleNamespace(wait_stream=lambda other: None),
            current_stream=lambda: SimpleNamespace(wait_stream=lambda other: None),
            stream=contextmanager(lambda stream: iter([None])),
            synchronize=lambda: None,
            CUDAGraph=lambda: SimpleNamespace(replay=self.replay),
            graph=self.graph,
            Event=lambda enable_timing: Event(self),
        )

    def call(self):
        if self.capturing:
            self.captured.append(self.call)
            return
        self.now_ms += 2.0
        self.log.append("call")

    @contextmanager
    def graph(self, graph):
        self.capturing = True
        yield
        self.capturing = False

    def replay(self):
        self.log.append("replay")
        for call in self.captured:
            call()

    def empty(self, size, dtype, device):
        def zero():
            self.now_ms += 50.0
            self.log.append(f"flush {size}")

        return SimpleNamespace(zero_=zero)


class Event:
    def __init__(self, gpu):
        self.gpu, self.at = gpu, 0.0

    def record(self):
        self.at = self.gpu.now_ms

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return end.at - self.at


@pytest.mark.parametrize("captured", [True, False])
def test_calls_on_a_gpu_are_warmed_flushed_repeated_and_divided(captured):
    gpu = MadeUpGpu()
    lab = Lab(gpu, "cuda", load_model("llama-3.1-8b"), l2_bytes=1000, sms=100)
    timing = time_calls(lab, [gpu.call] * 4, captured=captured)
    assert timing.latency == timing.latency_p25 == timing.latency_p75 == 2.0  # the flush does not count
    assert (timing.repeats, timing.calls, timing.captured) == (REPEATS["cuda"], 4, captured)
    assert gpu.log.count("flush 2000") == REPEATS["cuda"]
    plays = WARM_UP + REPEATS["cuda"]
    assert gpu.log.count("replay") == (plays if captured else 0)
    assert gpu.log.count("call") == 4 * plays + WARM_UP


def test_median_and_quartiles():
    timing = summarise([5.0, 1.0, 2.0, 3.0, 100.0], calls=7, captured=True)
    assert (timing.latency_p25, timing.latency, timing.latency_p75) == (2.0, 3.0, 5.0)
    assert (timing.repeats, timing.calls) == (5, 7)


def test_calls_go_round_copies_larger_than_twice_the_cache():
    lab = Lab(None, "cuda", load_model("llama-3.1-8b"), l2_bytes=50 * 2**20, sms=132)
    assert lab.copies(235e6) == 1
    assert lab.copies(34e6) == 4
    assert lab.copies(1000) == 64
    assert Lab(None, "cpu", lab.shape, lab.l2_bytes, 0).copies(1000) == 1


def step_rows(*rows):
    names = ("new", "cached", "batch", "context", "attention", "latency")
    return pl.DataFrame([dict(zip(names, row, strict=True)) for row in rows])


def test_a_mixed_step_is_taken_apart():
    frame = step_rows(
        (512, 64, 8, 1024, True, 20.0),
        (512, 64, 0, 0, True, 12.0),
        (0, 0, 8, 1024, True, 9.0),
        (512, 0, 8, 0, False, 11.0),
        (512, 0, 0, 0, False, 10.0),
        (0, 0, 8, 0, False, 7.0),
        (256, 0, 8, 1024, True, 15.0),  # its prompt alone was not measured
    )
    (part,) = take_apart(frame)
    assert (part.new, part.cached, part.batch, part.context) == (512, 64, 8, 1024)
    assert (part.prompt_attention_ms, part.decode_attention_ms) == (2.0, 2.0)
    assert part.ratio == (20.0 - 11.0) / 4.0
    noise = frame.with_columns(latency=pl.when(pl.col("attention")).then(0.0).otherwise(pl.col("latency")))
    assert take_apart(noise)[0].ratio is None


def arm_rows(**changed):
    times = {
        (0, 0, "distinct"): 20.0,
        (0, 0, "shared"): 18.0,
        (0, 0, "cascade"): 12.0,
        (1024, 2048, "distinct"): 50.0,
        (1024, 2048, "shared"): 50.0,
        (1024, 2048, "cascade"): 40.0,
        (1024, 0, "distinct"): 45.0,
        (1024, 0, "shared"): 44.0,
    }
    rows = [
        {"batch": 200, "new": new, "cached": cached, "prefix": prefix, "latency": latency}
        for (new, cached, prefix), latency in times.items()
    ]
    return pl.DataFrame([*rows, {"batch": 0, "new": 1024, "cached": 0, "prefix": "distinct", "latency": 25.0}])


def test_what_one_prefill_does_to_tpot():
    (rise,) = tpot_rise(arm_rows(), outputs=64)
    assert (rise.batch, rise.new) == (200, 1024)
    assert rise.distinct_append == pytest.approx((50 + 63 * 20) / (64 * 20) - 1)
    assert rise.distinct_full == pytest.approx((45 + 63 * 20) / (64 * 20) - 1)
    assert rise.cascade_append == pytest.approx((40 + 63 * 12) / (64 * 12) - 1)
    # The batch shares no more for as long as the new request lives: most of the rise is that, not the prefill.
    assert rise.cascade_lost == pytest.approx((44 + 63 * 18) / (64 * 12) - 1)
    assert rise.cascade_lost > 10 * rise.distinct_full


def test_a_missing_arm_gives_no_figure():
    frame = arm_rows()
    assert tpot_rise(frame.filter(~((pl.col("prefix") == "cascade") & (pl.col("new") == 0)))) == []
    with pytest.raises(MeasurementError, match="outputs = 0: expected at least 1 token"):
        tpot_rise(frame, outputs=0)


def test_what_the_driver_does_not_say_is_not_zero():
    query = ("driver_version", "power.limit", "clocks.max.sm")
    said = parse_csv("570.133.20, 700.00, [N/A]\n", query)
    assert said["driver_version"] == "570.133.20"
    assert number(said["power.limit"]) == 700.0
    assert number(said["clocks.max.sm"]) is None
    assert parse_csv("", query) == {}
    assert parse_csv("one value\n", query) == {}
    assert number(None) is None


def test_two_phases_count_only_while_both_run():
    asked = []

    def burst(replays):
        asked.append(replays)
        return 1.5, replays >= 16

    assert overlapped(burst) == [1.5] * BURSTS
    assert asked == [4, 8] + [16] * BURSTS
    with pytest.raises(NotMeasuredError, match="the other phase ended first"):
        overlapped(lambda replays: (1.5, False))
    assert MOST_REPLAYS >= 16


def test_the_clock_is_read_while_kernels_run(monkeypatch):
    asked = []

    def says(uuid, query):
        asked.append((uuid, query))
        return {"clocks.sm": ("1410", "[N/A]", "1980", "1395")[min(len(asked), 4) - 1]}

    monkeypatch.setattr(machine, "EVERY_S", 0.001)
    monkeypatch.setattr(machine, "nvidia_smi", says)
    properties = SimpleNamespace(uuid="c0ffee")
    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda index: properties))
    with Clocks(torch, "cuda") as clocks:
        while len(clocks.seen) < 3:
            clocks.done.wait(0.001)
    assert asked[0] == ("c0ffee", ("clocks.sm",))
    assert clocks.take() in (1395.0, 1402.5, 1410.0)  # a median; what the driver does not say is no 0
    assert clocks.take() is None  # nothing was read since
    with Clocks(None, "cpu") as none:
        assert none.take() is None


def test_a_share_of_sms_is_dealt_out_by_eights():
    assert [share_sms(share, 132) for share in (1.0, 0.75, 0.5, 0.25, 0.125, 0.01)] == [132, 96, 64, 32, 16, 8]
    assert share_sms(0.5, 108) == 56


def test_a_gpu_is_busy_before_the_first_point(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("envs.hardware.measure.timing.time.perf_counter", lambda: float(next(clock)))
    calls = []
    torch = SimpleNamespace(
        cuda=SimpleNamespace(synchronize=lambda: calls.append("wait")),
        nn=SimpleNamespace(functional=SimpleNamespace(linear=lambda x, w: calls.append("product"))),
        randn=lambda *sizes, device, dtype: sizes,
        bfloat16="bf16",
    )
    warm(Lab(torch, "cuda", load_model("llama-3.1-8b"), 2**20, 132))
    assert calls == (["product"] * 8 + ["wait"])
    warm(Lab(None, "cpu", load_model("llama-3.1-8b"), 2**20, 0))  # nothing to do


def test_slowdowns_are_held_against_a_phase_alone_on_all_sms():
    times = {(1.0, False): 2.0, (0.5, False): 3.0, (1.0, True): 2.6, (0.5, True): 4.0}
    rows = [
        {"phase": phase, "sm_share": share, "beside": beside, "latency": latency}
        for phase in ("prefill", "decode")
        for (share, beside), latency in times.items()
        if phase == "prefill" or (share, beside) != (1.0, False)
    ]
    found = share_slowdowns(pl.DataFrame(rows))
    assert [(row.phase, row.sm_share, row.beside, row.slowdown) for row in found] == [
        ("prefill", 0.5, False, 1.5), ("prefill", 1.0, True, 1.3), ("prefill", 0.5, True, 2.0),
    ]  # fmt: skip
