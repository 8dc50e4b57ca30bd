from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from traces import TraceError, load_trace
from traces.arrivals.gaps import Gaps, choose_gaps, fit_gaps
from traces.default import FIT_FILE, TRACE_FILE, default_trace, fit_default, read_fit, write_fit
from traces.describe import ideal_hit_share
from traces.laws import LEVELS, Copula, Quantiles
from traces.readers import canonical


def test_the_shipped_trace_is_what_the_shipped_numbers_give(tmp_path: Path) -> None:
    made, shipped = default_trace(read_fit()), load_trace("default")
    assert made.sha256 == shipped.sha256
    assert made.provenance == shipped.provenance
    canonical.write(made, tmp_path / "again.parquet")
    # The bytes depend on the Parquet writer's version; the content, checked above, does not.
    assert (tmp_path / "again.parquet").stat().st_size == pytest.approx(TRACE_FILE.stat().st_size, rel=0.2)
    assert TRACE_FILE.stat().st_size < 1_000_000


def test_it_is_chat_like_closed_and_has_prefixes() -> None:
    trace = load_trace("default")
    frame = trace.frame
    assert len(trace) == pytest.approx(12_000, rel=0.05)
    assert 1000 < frame["prompt_tokens"].to_numpy().mean() < 2000
    assert 200 < frame["output_tokens"].to_numpy().mean() < 270
    assert trace.replay == "closed"
    assert 0.2 < (frame["turn"] > 1).to_numpy().mean() < 0.4
    assert 0.3 < ideal_hit_share(trace) < 0.5


def test_a_later_prompt_is_the_turn_before_and_something_new() -> None:
    frame = load_trace("default").frame.sort("session", "turn")
    before = (pl.col("prompt_tokens") + pl.col("output_tokens")).shift(1).over("session")
    later = frame.with_columns(new=pl.col("prompt_tokens") - before).filter(pl.col("turn") > 1)
    assert later["new"].min() >= 1  # type: ignore[operator]
    fit = read_fit()
    law = fit.new_tokens.at(np.linspace(0, 1, 100_001))
    scaled = np.where(law <= 64, law, 64 + fit.scale * (law - 64))
    assert later["new"].to_numpy().mean() == pytest.approx(scaled.mean(), rel=0.1)


def test_every_session_starts_with_the_same_system_prompt() -> None:
    trace = load_trace("default")
    long_enough = np.flatnonzero(trace.frame["prompt_tokens"].to_numpy() >= 256)
    heads = {int(trace.chain(int(row))[0]) for row in long_enough[:500]}
    assert len(heads) < 5  # a session whose first prompt is shorter than the system prompt lacks it


def test_other_sizes_and_seeds() -> None:
    fit = read_fit()
    assert len(default_trace(fit, n_requests=500)) == pytest.approx(500, rel=0.2)
    assert len(default_trace(fit, n_requests=1)) >= 1
    assert default_trace(fit, 500, seed=1).sha256 != default_trace(fit, 500, seed=2).sha256


def test_the_numbers_survive_yaml(tmp_path: Path) -> None:
    write_fit(read_fit(), tmp_path / "fit.yaml")
    assert read_fit(tmp_path / "fit.yaml") == read_fit()
    assert (tmp_path / "fit.yaml").read_text("utf-8") == FIT_FILE.read_text("utf-8")
    (tmp_path / "fit.yaml").write_text("arrivals: 3\n", "utf-8")
    with pytest.raises(TraceError, match=r"fit\.yaml"):
        read_fit(tmp_path / "fit.yaml")
    with pytest.raises(TraceError, match="fitted numbers"):
        read_fit(tmp_path / "none.yaml")


def test_the_shipped_numbers_are_what_the_public_data_give(public_data: Path) -> None:
    assert fit_default(public_data) == read_fit()


def test_a_renewal_fit_finds_its_law_again() -> None:
    rng = np.random.default_rng(5)
    for law in (Gaps("gamma", 0.2, 0.6), Gaps("weibull", 0.2, 0.7), Gaps("poisson", 0.2, 1.0)):
        sample = law.draw(60_000, rng)
        assert sample.mean() == pytest.approx(law.mean_s, rel=0.03)
        again = fit_gaps(law.family, sample)
        assert again.shape == pytest.approx(law.shape, rel=0.03)
        assert again.mean_s == pytest.approx(law.mean_s, rel=0.03)


@pytest.mark.parametrize("family", ["gamma", "weibull"])
def test_the_family_is_chosen_by_held_out_likelihood(family: str) -> None:
    rng = np.random.default_rng(6)
    law = Gaps(family, 0.2, 0.4)
    chosen, scores = choose_gaps(law.draw(20_000, rng), 3 * law.draw(20_000, rng))
    assert chosen.family == family
    assert scores[family] > scores["poisson"] + 0.1


def test_quantiles_and_copula_give_their_sample_back() -> None:
    rng = np.random.default_rng(7)
    x = rng.gamma(2.0, 100.0, 20_000)
    y = x * rng.uniform(0.5, 1.5, x.size)
    law = Quantiles.fit(x)
    assert len(law.values) == len(LEVELS)
    drawn = law.at(rng.random(20_000))
    assert np.quantile(drawn, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(x, [0.1, 0.5, 0.9]), rel=0.05)
    assert law.mean == pytest.approx(x.mean(), rel=0.02)
    u, v = Copula.fit(x, y).draw(20_000, rng)
    assert np.corrcoef(u, v)[0, 1] == pytest.approx(
        np.corrcoef(x.argsort().argsort(), y.argsort().argsort())[0, 1], abs=0.03
    )
    assert np.histogram(u, 10, (0, 1))[0] == pytest.approx(2000, rel=0.12)
