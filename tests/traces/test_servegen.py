from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.traces.samples import write
from tests.traces.samples_servegen import DATASETS, MEDIA, TRACES, archive
from traces import Trace, TraceError, load_trace
from traces.generators.servegen import GAMMA, WEIBULL, Client, Pdf, Window, draw_arrivals
from traces.readers import canonical, servegen
from traces.source import read_source


def mean_prompt(fields: dict[str, Pdf]) -> float:
    """Mean prompt that the tables give: text, and what each image, clip and video adds."""
    text = fields["input_tokens" if "input_tokens" in fields else "text_tokens"].mean
    media = [medium for medium in ("image", "audio", "video") if f"{medium}_count" in fields]
    return text + sum(fields[f"{medium}_count"].mean * fields[f"{medium}_tokens"].mean for medium in media)


def read(folder: Path, traces: Any = TRACES, datasets: Any = DATASETS, **options: Any) -> Trace:
    return load_trace(write(folder, "m.tar", archive(traces, datasets)), **options)


def counts(trace: Trace) -> dict[str, int]:
    return dict(trace.frame.group_by("tenant").len().rows())


def test_lost_lengths_are_told_with_their_share_of_the_rate(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"1 have none, 70\.6% of the rate: clients 2 \(70\.6%\)"):
        read(tmp_path, duration_s=600)
    dropped = read(tmp_path, duration_s=600, missing_lengths="drop")
    assert set(counts(dropped)) == {"client-0", "client-1"}
    assert any("1 clients left out, 70.6% of the rate" in line for line in dropped.provenance)
    pooled = read(tmp_path, duration_s=600, missing_lengths="pool")
    assert counts(pooled)["client-2"] == pytest.approx(3600, rel=0.1)
    assert set(pooled.frame.filter(pl.col("tenant") == "client-2")["prompt_tokens"]) == {50, 100, 300}
    with pytest.raises(TraceError, match="1 have none, 100"):
        read(tmp_path, {2: TRACES[2]}, {}, missing_lengths="drop")


def test_windows_tables_and_stretches(tmp_path: Path) -> None:
    trace = read(tmp_path, duration_s=1800, missing_lengths="drop")
    first = trace.frame.filter(pl.col("tenant") == "client-0")
    arrival = first["arrival_s"].to_numpy()
    assert not ((arrival >= 600) & (arrival < 1200)).any()  # idle
    early, late = first.filter(pl.col("arrival_s") < 600), first.filter(pl.col("arrival_s") >= 1200)
    assert early["prompt_tokens"].to_numpy().mean() == pytest.approx(250, rel=0.05)
    assert set(late["prompt_tokens"]) == {1000}
    assert set(late["output_tokens"]) == {20, 40}
    # An empty table says nothing: the one before counts on, and one that comes later stands in for what is before it.
    idle = "0,1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n"
    assert set(read(tmp_path, {0: idle}, {0: DATASETS[0]}, start_s=600, duration_s=600).frame["output_tokens"]) == {10}
    later = read(tmp_path, {0: idle}, {0: {"600": DATASETS[1]["0"]}}, duration_s=1200)
    assert any("before their client's first length table" in line for line in later.provenance)


def test_images_add_to_the_prompt(tmp_path: Path) -> None:
    trace = read(tmp_path, {0: TRACES[0]}, {0: MEDIA}, duration_s=600)
    assert set(trace.frame["prompt_tokens"]) == {54, 58, 62, 66, 70, 74}
    assert trace.frame["prompt_tokens"].to_numpy().mean() == pytest.approx(50 + 2 * 6, rel=0.02)


def test_rates_clients_ranks_and_seeds(tmp_path: Path) -> None:
    options: dict[str, Any] = {"duration_s": 600, "missing_lengths": "drop"}
    own = read(tmp_path, **options)
    assert counts(own)["client-0"] == pytest.approx(1200, abs=4 * 1200**0.5)
    faster = read(tmp_path, **options, rate_per_s=25.0)
    assert faster.rate_per_s == pytest.approx(25.0, rel=0.05)
    busiest = read(tmp_path, **options, clients=1)
    assert set(counts(busiest)) == {"client-0"}
    mine = own.frame.filter(pl.col("tenant") == "client-0")["arrival_s"]
    assert mine.to_list() == busiest.frame["arrival_s"].to_list()  # others do not disturb its draws
    assert own.sha256 == read(tmp_path, **options).sha256
    assert own.sha256 != read(tmp_path, **options, seed=1).sha256
    equal = read(tmp_path, {0: "0,1,1,Gamma,1,1\n"}, {0: _halves()}, length_ranks="equal").frame
    assert set(equal.select("prompt_tokens", "output_tokens").rows()) == {(10, 1), (20, 2)}
    apart = read(tmp_path, {0: "0,1,1,Gamma,1,1\n"}, {0: _halves()}).frame
    assert len(set(apart.select("prompt_tokens", "output_tokens").rows())) == 4


def _halves() -> Any:
    return {"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{1: 0.5, 2: 0.5}"}}


@pytest.mark.parametrize(
    "window",
    [Window(0, 600, 40, 1, GAMMA, 1.0), Window(0, 600, 40, 3, GAMMA, 1 / 9), Window(0, 600, 40, 2.4, WEIBULL, 0.5)],
)
def test_a_window_has_its_rate_and_its_spread(window: Window) -> None:
    rng = np.random.default_rng(1)
    stretched = Client(0, tuple(Window(a, a + 600, 40, window.cv, window.family, window.shape) for a in (0, 600)), ())
    arrivals = [draw_arrivals(stretched, 1.0, rng) for _ in range(30)]
    gaps = np.concatenate([np.diff(one) for one in arrivals])
    assert gaps.std() / gaps.mean() == pytest.approx(window.law_cv, rel=0.05)
    n = np.array([one.size for one in arrivals])
    # The variance of a renewal count is about its mean times the squared CV.
    assert n.mean() == pytest.approx(48_000, abs=5 * window.law_cv * (48_000 / 30) ** 0.5)


def test_a_slow_client_keeps_its_rate() -> None:
    """A request in ten windows, whatever the burst: no window rounds up to one."""
    windows = tuple(Window(600.0 * k, 600.0 * (k + 1), 1 / 6000, 3, GAMMA, 0.1) for k in range(40_000))
    drawn = draw_arrivals(Client(0, windows, ()), 1.0, np.random.default_rng(3))
    assert drawn.size == pytest.approx(4000, abs=4 * (10 * 4000) ** 0.5)
    assert (np.diff(drawn) >= 0).all()


def _inputs(table: str) -> Any:
    return {"0": {"input_tokens": table, "output_tokens": "{1: 1}"}}


BAD: list[tuple[dict[int, str], dict[int, Any], dict[str, Any], str]] = [
    ({0: "0,1,1,Gamma,1\n"}, {}, {}, r"chunk-0-trace\.csv, row 1.*6 fields"),
    ({0: "0,1,1,Gama,1,1\n"}, {}, {}, r"row 1, column 'family'.*Gamma with"),
    ({0: "0,x,1,Gamma,1,1\n"}, {}, {}, "row 1.*6 fields"),
    ({0: "0,nan,1,Gamma,1,1\n"}, {}, {}, "column 'rate'"),
    ({0: "600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n"}, {}, {}, "row 2, column 't'.*ascending"),
    ({0: "0,1,1,,0,0\n"}, {}, {}, "where there is a rate"),
    ({0: "0,0,0,,0,0\n"}, {}, {}, "some client is active"),
    ({}, {0: DATASETS[0]}, {}, r"chunk-0-trace\.csv beside"),
    ({0: TRACES[0]}, {0: {"0": {"input_token": "{1: 1}", "output_tokens": "{1: 1}"}}}, {}, "this field to be present"),
    ({0: TRACES[0]}, {0: _inputs("{1: 1, __import__('os'): 0}")}, {}, r"0\.input_tokens.*sum to 1"),
    ({0: TRACES[0]}, {0: _inputs("{1: 0.5}")}, {}, "sum to 1"),
    ({0: TRACES[0]}, {0: {"a": {"input_tokens": "{}", "output_tokens": "{}"}}}, {}, "whole seconds"),
    (TRACES, DATASETS, {"missing_lengths": "dropp"}, "did you mean 'drop'"),
    (TRACES, DATASETS, {"clients": 0}, "options.clients"),
    (TRACES, DATASETS, {"missing_lengths": "drop", "rate_per_s": 1e6}, "at most 20,000,000 requests"),
]  # fmt: skip


@pytest.mark.parametrize(("traces", "datasets", "options", "match"), BAD)
def test_what_is_wrong_is_named(
    tmp_path: Path, traces: dict[int, str], datasets: dict[int, Any], options: dict[str, Any], match: str
) -> None:
    with pytest.raises(TraceError, match=match):
        read(tmp_path, traces, datasets, format="servegen", **options)


def test_one_workload_at_a_time(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in ("language/a", "language/b"):
            info = tarfile.TarInfo(f"{folder}/chunk-0-trace.csv")
            info.size = len(TRACES[0])
            tar.addfile(info, io.BytesIO(TRACES[0].encode()))
    with pytest.raises(TraceError, match="one workload; name its folder"):
        load_trace(write(tmp_path, "two.tar", buffer.getvalue()), format="servegen")
    with pytest.raises(TraceError, match="an archive or a folder"):
        load_trace(write(tmp_path, "chunk-0-trace.csv", TRACES[0].encode()))


@pytest.mark.parametrize("workload", ["m-small", "deepseek-r1", "mm-image"])
def test_drawn_traffic_has_the_files_rates_cvs_and_lengths(public_data: Path, tmp_path: Path, workload: str) -> None:
    """The window of each client against the file's own numbers; a round trip."""
    path = public_data / "traces" / "servegen" / f"{workload}.tar.zst"
    start, duration = 6 * 3600.0, 1200.0
    trace = load_trace(path, format="servegen", start_s=start, duration_s=duration, missing_lengths="drop", seed=2)
    canonical.write(trace, tmp_path / "x.parquet")
    assert load_trace(tmp_path / "x.parquet").sha256 == trace.sha256
    clients = {c.number: c for c in servegen.read_clients(read_source(path), start, start + duration)}
    checked = 0
    for tenant, frame in trace.frame.group_by("tenant"):
        client = clients[int(str(tenant[0]).removeprefix("client-"))]
        arrival = frame["arrival_s"].to_numpy() + start
        for window in client.windows:
            inside = np.sort(arrival[(arrival >= window.start_s) & (arrival < window.end_s)])
            want = window.rate_per_s * (window.end_s - window.start_s)
            if not want:
                assert not inside.size
                continue
            noise = max(window.law_cv, 1.0) * max(want, 1.0) ** 0.5
            assert abs(inside.size - want) < 6 * noise
            if want > 3000 and window.law_cv < 2:
                cv = np.diff(inside).std() / np.diff(inside).mean()
                assert cv == pytest.approx(window.law_cv, rel=0.1)
                if window.family == GAMMA:
                    assert cv == pytest.approx(window.cv, rel=0.1)
                checked += 1
        tables = client.tables[0].fields
        if len(client.tables) == 1 and frame.height > 2000:
            means = {"prompt_tokens": mean_prompt(tables), "output_tokens": tables["output_tokens"].mean}
            for column, mean in means.items():
                values = frame[column].to_numpy()
                assert values.mean() == pytest.approx(mean, abs=5 * values.std() / values.size**0.5 + 0.5)
            checked += 1
    assert checked
