"""Generators of the public traces against their validation windows, and the two commands."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from research.traces import main
from traces import Trace, load_trace
from traces.catalog import zones
from traces.generators.draw import draw_trace
from traces.generators.fit import fit_generator, fit_windows
from traces.generators.fit_sessions import later_turns
from traces.generators.spec import Generator, write_generator

# The family of arrivals that a fit with all of them chooses: trying all takes ten seconds a trace.
FAMILIES = {
    "azure_conv": ("swung_regimes2",),
    "azure_code": ("slowed_regimes6",),
    "mooncake_conversation": ("multiscale",),
    "agentic": ("weibull",),
}


@cache
def fitted(name: str, data: Path) -> tuple[Generator, Trace]:
    train, validation = fit_windows(load_trace(name, data_dir=data))
    return fit_generator(train, validation, families=FAMILIES[name]), train


@pytest.mark.parametrize("name", FAMILIES)
def test_drawn_traces_are_near_the_validation_window(public_data: Path, name: str) -> None:
    """Bounds: the distance of the train window itself and 0.03; see traces.generators.distance."""
    made, _ = fitted(name, public_data)
    found = made.distances["ks"]
    sessions = ["turns", "think_s"] if made.sessions else []
    assert list(found) == ["inter_arrival_s", "prompt_tokens", "output_tokens", *sessions]
    for quantity, row in found.items():
        assert row["generated"] <= row["real"] + 0.03, quantity
        assert row["within"], quantity


# Scales at which the bar, 15 % of the validation window, is missed: docs/traces/generators.md says by how much. Azure
# code's train zone is burstier than its validation; sixty seconds are nine intervals or 19, and starts of agentic
# sessions are drawn at random in the source.
BEYOND = {
    "azure_conv": [],
    "azure_code": ["1s", "10s", "60s"],
    "mooncake_conversation": ["10s"],
    "agentic": ["60s"],
}


@pytest.mark.parametrize("name", FAMILIES)
def test_burstiness_is_the_fitted_windows_and_mostly_that_of_validation(public_data: Path, name: str) -> None:
    found = fitted(name, public_data)[0].distances["dispersion"]
    assert list(found) == ["1s", "10s", "60s"]
    assert [scale for scale, row in found.items() if abs(row["generated"] / row["held_out"] - 1) > 0.15] == BEYOND[name]
    assert [scale for scale, row in found.items() if not row["within"]] == BEYOND[name]
    for scale, row in found.items():
        if (name, scale) != ("azure_code", "60s"):  # two stretches of it: tests/traces/test_arrivals_public.py
            assert row["generated"] == pytest.approx(row["fitted"], rel=0.15), scale
        if name != "azure_code" and scale != "60s":
            assert row["band"][0] < row["generated"] < row["band"][1], scale


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_these_are_the_laws_that_a_user_gets(public_data: Path, name: str) -> None:
    made = fit_generator(*fit_windows(load_trace(name, data_dir=public_data)))
    assert made.arrivals == fitted(name, public_data)[0].arrivals


def test_ideal_hits_are_near_the_sources(public_data: Path) -> None:
    for name, within in (("mooncake_conversation", 0.04), ("agentic", 0.02)):
        hits = fitted(name, public_data)[0].distances["ideal_hit_share"]
        assert hits["generated"] == pytest.approx(hits["held_out"], abs=within)
        assert hits["generated"] == pytest.approx(hits["fitted"], abs=within)


def ranks(frame: pl.DataFrame, first: str, second: str) -> float:
    return float(stats.spearmanr(frame[first].to_numpy(), frame[second].to_numpy()).statistic)


def test_dependence_within_sessions_is_kept(public_data: Path) -> None:
    made, train = fitted("agentic", public_data)
    drawn = draw_trace(made, requests=60_000, seed=3)
    real, other = (later_turns(trace).frame for trace in (train, drawn))
    for first, second in (("said", "output"), ("new", "output"), ("output", "think"), ("new", "think")):
        assert ranks(other, first, second) == pytest.approx(ranks(real, first, second), abs=0.08), (first, second)
    lagged = [f.with_columns(last=pl.col("think").shift(1)).filter("follows") for f in (real, other)]
    assert ranks(lagged[1], "last", "think") == pytest.approx(ranks(lagged[0], "last", "think"), abs=0.08)
    for low, high in ((2, 4), (5, 16), (17, 64), (65, 400)):
        parts = [f.filter(pl.col("turn").is_between(low, high)) for f in (real, other)]
        for column, within in (("prompt", 0.2), ("output", 0.1), ("think", 0.2)):
            want, got = (float(part[column].median()) for part in parts)  # type: ignore[arg-type]
            assert got == pytest.approx(want, rel=within), (low, column)
    growth = []
    for frame in (real, other):  # some sessions grow faster for good
        by_session = frame.group_by("session").agg(pl.len(), pl.col("new").mean()).filter(pl.col("len") > 20)
        growth.append(float(np.subtract(*np.quantile(by_session["new"].to_numpy(), [0.75, 0.25]))))
    assert growth[1] == pytest.approx(growth[0], rel=0.4)


def test_first_lengths_go_together_as_in_the_source(public_data: Path) -> None:
    for name in ("azure_conv", "azure_code"):
        made, train = fitted(name, public_data)
        drawn = draw_trace(made, requests=30_000, seed=4)
        both = [ranks(trace.frame, "prompt_tokens", "output_tokens") for trace in (train, drawn)]
        assert both[1] == pytest.approx(both[0], abs=0.04)
        common = train.frame["output_tokens"].value_counts(sort=True).head(3)
        for value, count in common.rows():
            share = (drawn.frame["output_tokens"] == value).to_numpy().mean()
            assert share == pytest.approx(count / len(train), abs=0.008)


def command(*settings: str) -> None:
    assert main(list(settings)) == 0


def test_fit_generate_and_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No data needed: the shipped trace is the source."""
    command("action=fit", "trace=default", f"out={tmp_path}")
    said = capsys.readouterr().out
    assert re.search(r"prompt_tokens.*within", said)
    assert re.search(r"in 1s intervals.*within 15%.*inside", said)
    assert re.search(r"in 60s intervals.* to .*-5\d\.\d%.*beyond 15%.*inside", said)
    assert "not kept: " in said
    assert f"action=generate path={tmp_path / 'fit.yaml'}" in said
    settings = [f"path={tmp_path / 'fit.yaml'}", "duration_s=1200", "rate_per_s=6"]
    command("action=generate", *settings, f"out={tmp_path / 'a'}")
    said = capsys.readouterr().out
    assert f"next: python -m research.compare trace.path={tmp_path / 'a' / 'trace.parquet'}" in said
    assert "warning" not in said
    trace = load_trace(tmp_path / "a" / "trace.parquet")
    assert trace.name.startswith("generated_default")
    assert trace.rate_per_s == pytest.approx(6, rel=0.1)
    for zone, part in zones(trace).items():
        assert len(part.windows(20)) == 20, zone
    command("action=generate", *settings, f"out={tmp_path / 'b'}")
    assert (tmp_path / "b" / "trace.parquet").read_bytes() == (tmp_path / "a" / "trace.parquet").read_bytes()


def test_what_is_drawn_is_printed_beside_what_was_asked_for(
    public_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Azure code's bursts make 600 s of it anything from half to almost twice what was asked for."""
    made, _ = fitted("azure_code", public_data)
    write_generator(made, tmp_path / "fit.yaml")
    shares = []
    for seed in range(8):
        out = tmp_path / str(seed)
        words = [f"path={tmp_path / 'fit.yaml'}", "duration_s=600", "requests=5000", f"seed={seed}", f"out={out}"]
        command("action=generate", *words)
        said = " ".join(capsys.readouterr().out.split())
        trace = load_trace(out / "trace.parquet")
        assert f"asked for 5,000 requests in 600 s, 8.333/s; drawn {len(trace):,}, {len(trace) / 600:.4g}/s" in said
        assert f"asked for 8.33333 requests/s, drawn {len(trace)} requests" in trace.provenance[0]
        shares.append(len(trace) / 5000)
        assert ("warning" in said) == (abs(shares[-1] - 1) > 0.1)
    assert max(abs(share - 1) for share in shares) > 0.1


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (["action=generate"], "path=FIT.yaml"),
        (["action=generate", "path=none.yaml"], "none.yaml: expected a generator"),
        (["action=generate", "path=none.yaml", "zone=test"], "takes no zone"),
        (["action=fit", "trace=default", "zone=tset"], "did you mean 'test'"),
        (["action=fit", "trace=default", "seed=x"], "column 'seed'"),
    ],
)
def test_what_a_user_gets_wrong(settings: list[Any], match: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(settings) != 0
    said = capsys.readouterr()
    assert match in " ".join((said.out + said.err).split())
