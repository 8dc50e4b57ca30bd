from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from traces import Trace, TraceError, load_trace
from traces.describe import ideal_hit_share
from traces.generators.chains import longest, resolve
from traces.generators.dependence import Dependence, normal_scores
from traces.generators.distance import cut_alike
from traces.generators.draw import draw_trace
from traces.generators.fit import fit_generator, fit_windows
from traces.generators.fit_sessions import fit_sessions, later_turns
from traces.generators.lengths import fit_mixes
from traces.generators.marginal import Marginal
from traces.generators.prefixes import Documents, PrefixLaw, System, draw_documents, fit_prefixes, reuse_share
from traces.generators.sessions import Compaction, SessionLaw, Stage
from traces.generators.spec import Generator, read_generator, write_generator
from traces.laws import Copula

QUICK = ("poisson", "gamma")


@cache
def fitted_default() -> Generator:
    return fit_generator(*fit_windows(load_trace("default")), families=QUICK)


def same(value: float, digits: int = 0) -> Marginal:
    return Marginal.fit(np.array([value]), digits)


def test_a_marginal_keeps_repeated_values_and_tails() -> None:
    rng = np.random.default_rng(0)
    sample = np.r_[np.full(500, 397), np.full(200, 7436), rng.lognormal(6, 1.5, 9_300).astype(np.int64) + 1]
    law = Marginal.fit(sample)
    drawn = law.at(rng.random(100_000))
    assert stats.ks_2samp(drawn, sample).statistic < 0.01
    for value in (397, 7436):
        assert (drawn == value).mean() == pytest.approx((sample == value).mean(), abs=0.004)
    assert drawn.min() == sample.min()
    assert drawn.max() <= sample.max()
    for level in (0.001, 0.999):
        assert np.quantile(drawn, level) == pytest.approx(np.quantile(sample, level), rel=0.2)
    assert law.mean == pytest.approx(sample.mean(), rel=0.03)
    assert len(law.levels) < 160
    assert Marginal.from_dict(law.to_dict()) == law


def test_a_marginal_of_few_values_gives_those_only() -> None:
    u = (np.arange(1000) + 0.5) / 1000
    assert set(Marginal.fit(np.array([1, 1, 2, 5])).at(u)) == {1.0, 2.0, 5.0}
    assert set(Marginal.fit(np.array([0.0, 0.25]), 2).at(u)) == {0.0, 0.25}
    assert set(same(42).at(u)) == {42.0}


@pytest.mark.parametrize(
    "raw",
    [
        {"levels": [0, 1], "values": [1], "digits": 0},
        {"levels": [0, 0.5], "values": [1, 2], "digits": 0},
        {"levels": [0, 1], "values": [2, 1], "digits": 0},
        {"levels": [0, 1], "values": [1, float("nan")], "digits": 0},
    ],
)
def test_a_marginal_that_is_none_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="levels"):
        Marginal.from_dict(raw)


def test_a_copula_gives_the_second_rank_for_the_first() -> None:
    rng = np.random.default_rng(1)
    x = rng.random(20_000)
    law = Copula.fit(x, x + rng.normal(0, 0.2, x.size))
    u = rng.random(50_000)
    v = law.given(u, rng)
    assert stats.spearmanr(u, v).statistic == pytest.approx(
        stats.spearmanr(x, x + rng.normal(0, 0.2, x.size)).statistic, abs=0.03
    )
    assert np.histogram(v, 10, (0, 1))[0] == pytest.approx(5000, rel=0.06)
    assert law.given(np.array([0.0, 1.0]), rng).shape == (2,)


def test_dependence_tells_what_lasts_from_what_fades() -> None:
    """Two thirds of one score stay with the session, another fades: their lagged correlations alone are alike."""
    rng = np.random.default_rng(2)
    sessions, turns = 600, 30
    effect = rng.normal(size=(sessions, 1)) * np.sqrt(2 / 3)
    stays = effect + rng.normal(size=(sessions, turns)) * np.sqrt(1 / 3)
    fades = np.empty((sessions, turns))
    fades[:, 0] = rng.normal(size=sessions)
    for k in range(1, turns):
        fades[:, k] = 0.6 * fades[:, k - 1] + 0.8 * rng.normal(size=sessions)
    scores = np.stack([stays.ravel(), fades.ravel(), rng.normal(size=stays.size)], axis=1)
    session = np.repeat(np.arange(sessions), turns)
    law = Dependence.fit(scores, session, np.arange(session.size) % turns > 0, effect[session, 0] * 1.0)
    assert np.diag(law.session) == pytest.approx([2 / 3, 0.0, 0.0], abs=0.12)
    assert np.diag(law.carry) == pytest.approx([0.0, 0.6, 0.0], abs=0.12)
    assert Dependence.from_dict(law.to_dict()) == law
    assert law.by_turns == pytest.approx((1.0, 0.0, 0.0), abs=0.1)  # the number of turns is given as the effect here
    effects, rests = replace(law, by_turns=(0.0, 0.0, 0.0)).start(np.full(4000, 1.5), 0, np.zeros(4000), rng)
    assert (effects + rests)[:, 0] == pytest.approx(1.5)
    assert effects[:, 0].mean() == pytest.approx(1.0, abs=0.1)  # two thirds of it are the session's
    assert normal_scores(np.array([3.0, 1.0, 2.0])) == pytest.approx([0.967, -0.967, 0.0], abs=1e-3)


def test_texts_go_on_from_one_another() -> None:
    """Text 1 leaves text 0 after two blocks, text 2 leaves text 1 after three, before which it is in text 0 for two."""
    text, length = np.array([0, 1, 2, 1]), np.array([4, 4, 5, 5])
    parent, cut = np.array([-1, 0, 1]), np.array([0, 2, 3])
    offsets, ids = resolve(text, length, parent, cut, longest(text, length, 3))
    chains = [ids[a:b].tolist() for a, b in pairwise(offsets)]
    zero, one, two, again = chains
    assert one[:2] == zero[:2]
    assert not set(one[2:]) & set(zero)
    assert two[:3] == one[:3]
    assert not set(two[3:]) & {*zero, *one, *again}
    assert again[:4] == one


def diagonal(value: float) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(value if i == j else 0.0 for j in range(3)) for i in range(3))


def known_law() -> SessionLaw:
    """Every turn of 1000 tokens or so: new tokens 200, answers 100, a fifth dropped, a tenth edited, some compacted."""
    return SessionLaw(
        turns=Marginal.fit(np.arange(1, 40)),
        prompt_and_turns=Copula(((1,),)),
        stages=(
            Stage(2, 0.5, Marginal.fit(np.arange(150, 250)), Marginal.fit(np.arange(300, 500)), same(2.0, 2)),
            Stage(9, 0.8, Marginal.fit(np.arange(150, 250)), Marginal.fit(np.arange(300, 500)), same(8.0, 2)),
        ),
        dependence=Dependence(diagonal(1.0), diagonal(0.3), diagonal(0.4), (0.0, 0.3, 0.0)),
        dropped_share=0.2,
        dropped_growth=Marginal.fit(np.arange(20, 60)),
        edited_share=0.1,
        edited_kept=same(0.5, 4),
        compaction=Compaction((0.0,), (8000.0,), ((0.0, 0.25), (0.0, 0.25)), same(0.25, 4), same(0.1, 4)),
        max_context_tokens=40_000,
    )


def known() -> Generator:
    made = fitted_default()
    prefixes = PrefixLaw(16, (System(8, 0.75),), None)
    return replace(made, sessions=known_law(), prefixes=prefixes, requests=20 * made.starts)


def test_a_session_law_is_found_again_in_what_it_draws() -> None:
    trace = draw_trace(known(), requests=60_000, seed=4)
    law = known_law()
    found = fit_sessions(trace)
    assert found is not None
    assert found.turns.mean == pytest.approx(law.turns.mean, rel=0.05)
    assert found.dropped_share == pytest.approx(law.dropped_share, abs=0.015)
    # An edit at the half of a dropped answer's turn is one too; where half a prompt is nothing it shows as none.
    assert found.edited_share == pytest.approx(law.edited_share, abs=0.03)
    assert found.edited_kept is not None
    assert found.edited_kept.mean == pytest.approx(0.5, abs=0.03)
    assert found.compaction is not None
    # Sessions that pass untouched by luck look like those of a larger window, so the shares by kind are not the law's:
    # what they draw is.
    again = draw_trace(replace(known(), sessions=found), requests=60_000, seed=5)
    shrinks = [(f["prompt"] < f["before"]).to_numpy().mean() for f in (later_turns(t).frame for t in (trace, again))]
    assert shrinks[1] == pytest.approx(shrinks[0], rel=0.1)
    assert found.compaction.prompt_ratio.mean == pytest.approx(0.25, abs=0.01)
    assert found.compaction.kept_ratio.mean == pytest.approx(0.1, abs=0.02)
    assert [s.first_turn for s in found.stages] == [2, 3, 5, 9, 17]
    assert found.stages[0].think_s.mean == pytest.approx(2.0, abs=0.01)
    assert found.stages[3].think_s.mean == pytest.approx(8.0, abs=0.01)
    assert found.stages[1].output_tokens.mean == pytest.approx(400, rel=0.03)
    # Think times are constant here: they have no scores. Outputs show what the law has.
    assert found.dependence.session[1][1] == pytest.approx(0.3, abs=0.06)
    assert found.dependence.carry[1][1] == pytest.approx(0.4, abs=0.06)
    longest_context = (trace.frame["prompt_tokens"] + trace.frame["output_tokens"]).max()
    assert longest_context <= law.max_context_tokens  # type: ignore[operator]


def test_chains_follow_the_kind_of_turn() -> None:
    trace = draw_trace(known(), requests=4000, seed=5)
    block = trace.prefix_block_tokens
    rows = later_turns(trace).frame
    checked = dict.fromkeys(("whole", "compacted"), 0)
    for row in rows.head(1500).iter_rows(named=True):
        now, before = (set(trace.chain(row[k]).tolist()) for k in ("row", "row_before"))
        if row["prompt"] < row["before"]:
            assert row["shared"] <= 0.1 * row["before"] + block
            checked["compacted"] += 1
        elif row["shared"] >= row["before"] // block * block and row["new"] >= 0:
            assert len(now & before) >= (row["before"] + row["said"]) // block  # the answer is in both
            checked["whole"] += 1
    assert min(checked.values()) > 20


def test_system_prompts_are_found_again() -> None:
    trace = draw_trace(known(), requests=20_000, seed=6)
    law = fit_prefixes(trace)
    assert law is not None
    assert [s.blocks for s in law.systems] == [8]
    assert law.systems[0].share == pytest.approx(0.75, abs=0.05)
    assert law.documents is None


@pytest.mark.parametrize("law", [(0.0, 500, np.inf), (1.1, 20_000, np.inf), (0.6, 3000, 400.0)])
def test_documents_are_met_again_as_the_law_says(law: tuple[float, int, float]) -> None:
    documents = Documents(*law, same(1.0, 3), 0.0, {})
    steps = [16, 128, 1024]
    seen = []
    for n in steps:
        runs = [draw_documents(documents, 3000 + n, np.random.default_rng(k))[-n:] for k in range(150)]
        seen.append(1 - float(np.mean([np.unique(run).size for run in runs])) / n)
    assert reuse_share(np.array(steps), *law) == pytest.approx(seen, abs=0.02)


def test_zipf_documents_are_found_again() -> None:
    documents = Documents(0.9, 4000, 1500.0, same(0.8, 3), 0.9, {})
    made = replace(fitted_default(), sessions=None, prefixes=PrefixLaw(16, (System(1, 1.0),), documents), requests=4000)
    made = replace(made, starts=4000)
    trace = draw_trace(made, requests=20_000, seed=7)
    law = fit_prefixes(trace)
    assert law is not None
    assert law.documents is not None
    assert law.documents.length_correlation == pytest.approx(0.9, abs=0.06)
    n = np.array([64, 512, 4096, 100_000])
    found = law.documents
    assert reuse_share(n, found.exponent, found.documents, found.life_sessions) == pytest.approx(
        reuse_share(n, 0.9, 4000, 1500.0), abs=0.06
    )
    other = draw_trace(replace(made, prefixes=law), requests=20_000, seed=8)
    assert ideal_hit_share(other) == pytest.approx(ideal_hit_share(trace), abs=0.04)


def test_first_turns_are_drawn_by_label() -> None:
    rng = np.random.default_rng(9)
    n = 4000
    batch = rng.random(n) < 0.25
    frame = {
        "arrival_s": np.sort(rng.random(n) * 500),
        "prompt_tokens": np.where(batch, 5000, 100) + rng.integers(0, 50, n),
        "output_tokens": np.where(batch, 10, 200) + rng.integers(0, 5, n),
        "class": np.where(batch, "batch", "chat"),
        "priority": np.where(batch, 0, 1),
        "tenant": [None if k % 2 else "a" for k in range(n)],
    }
    trace = Trace.build("t", frame, duration_s=500.0)
    _, mixes, rare = fit_mixes(trace)
    assert len(mixes) == 4
    assert rare == 0
    drawn = draw_trace(fit_generator(*fit_windows(trace), families=QUICK), requests=10_000, seed=1)
    assert drawn.replay == "open"
    assert drawn.classes == ("batch", "chat")
    by_class = dict(drawn.frame.group_by("class").len().rows())
    assert by_class["batch"] / len(drawn) == pytest.approx(0.25, abs=0.03)
    assert drawn.frame.filter(pl.col("class") == "batch")["prompt_tokens"].min() >= 4990  # type: ignore[operator]
    assert set(drawn.frame.select("class", "priority").unique().rows()) == {("batch", 0), ("chat", 1)}
    assert drawn.frame["tenant"].null_count() / len(drawn) == pytest.approx(0.5, abs=0.03)


def test_size_rate_and_bits() -> None:
    made = fitted_default()
    one = draw_trace(made, duration_s=600.0, rate_per_s=20.0, seed=3)
    assert one.sha256 == draw_trace(made, duration_s=600.0, rate_per_s=20.0, seed=3).sha256
    assert one.sha256 != draw_trace(made, duration_s=600.0, rate_per_s=20.0, seed=4).sha256
    assert one.duration_s == 600.0
    assert len(one) == pytest.approx(12_000, rel=0.06)
    assert one.replay == "closed"
    assert len(draw_trace(made, requests=5000)) == pytest.approx(5000, rel=0.1)
    assert draw_trace(made).rate_per_s == pytest.approx(made.rate_per_s, rel=0.15)
    assert one.name == "generated_default[0,1001.48)"
    assert one.provenance[0].startswith(f"generated: drawn by traces.generators from fit {made.sha256}, 600 s")
    assert any(f"content {made.source_sha256}" in line for line in one.provenance)


@pytest.mark.parametrize(
    ("sizes", "match"),
    [
        ({"duration_s": -1.0}, "column 'duration_s'"),
        ({"rate_per_s": float("inf")}, "column 'rate_per_s'"),
        ({"requests": "many"}, "column 'requests'"),
        ({"duration_s": [1]}, "column 'duration_s'"),
        ({"rate_per_s": 2**2000}, "column 'rate_per_s'"),
        ({"requests": 5, "rate_per_s": 1.0, "duration_s": 5.0}, "two of"),
        ({"duration_s": 1e9}, "at most 50,000,000"),
        ({"duration_s": 1e-9}, "something starts"),
        ({"seed": -1}, "column 'seed'"),
    ],
)
def test_sizes_that_make_no_sense(sizes: dict[str, Any], match: str) -> None:
    with pytest.raises(TraceError, match=match):
        draw_trace(fitted_default(), **sizes)


def test_a_generator_survives_yaml(tmp_path: Path) -> None:
    path = tmp_path / "fit.yaml"
    for made in (fitted_default(), known()):
        write_generator(made, path)
        again = read_generator(path)
        assert again == made
        assert again.sha256 == made.sha256
    assert path.stat().st_size < 60_000
    text = path.read_text("utf-8")
    for broken in ("", "a: 1\n", "- 1\n", ":\n:", text.replace("version: 1", "version: 2"), text[: len(text) // 2],
                   text.replace("dropped_share: 0.2", "dropped_share: 3"), "[" * 3000,
                   re.sub(r"(?m)^requests: .*", f"requests: {2**2000}", text),
                   re.sub(r"block_tokens: .*", "block_tokens: 1.0e+308", text)):  # fmt: skip
        path.write_text(broken, "utf-8")
        with pytest.raises(TraceError, match=r"fit\.yaml.*a generator written by action=fit"):
            read_generator(path)
    with pytest.raises(TraceError, match="action=fit"):
        read_generator(tmp_path / "none.yaml")


@given(
    place=st.floats(0, 1, exclude_max=True),
    word=st.sampled_from(["nan", ".nan", "-1", "1e308", "1.0e+308", ".inf", "x", "[]", "0"]),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_generator_draws_a_trace_or_says_what_is_wrong(tmp_path: Path, place: float, word: str) -> None:
    path = tmp_path / "fit.yaml"
    write_generator(known(), path)
    text = path.read_text("utf-8")
    numbers = [m for m in re.finditer(r"-?\d+\.?\d*", text) if m.start() > text.index("\narrivals:")]
    spot = numbers[int(place * len(numbers))]
    path.write_text(text[: spot.start()] + word + text[spot.end() :], "utf-8")
    with contextlib.suppress(TraceError):
        assert len(draw_trace(read_generator(path), requests=200))


def test_the_hash_is_of_the_laws() -> None:
    made = fitted_default()
    assert replace(made, distances={}, not_kept=()).sha256 == made.sha256
    assert replace(made, starts=made.starts - 1).sha256 != made.sha256


def test_what_cannot_be_fitted() -> None:
    trace = load_trace("default")
    with pytest.raises(TraceError, match=r"column 'zone'.*did you mean 'train'"):
        fit_windows(trace, "trein")
    tiny = trace.window(0.0, 1.0)
    with pytest.raises(TraceError, match="30 session starts or more"):
        fit_generator(tiny, tiny)


def test_other_zones_are_judged_on_a_third_of_themselves() -> None:
    trace = load_trace("default")
    fitted, held_out = fit_windows(trace, "test")
    assert fitted.duration_s == pytest.approx(2 * held_out.duration_s)
    whole, rest = fit_windows(trace, "all")
    assert whole.duration_s + rest.duration_s == pytest.approx(trace.duration_s)
    assert len(whole) + len(rest) == len(trace)


def test_drawn_sessions_are_cut_as_the_window_cuts_its_own() -> None:
    drawn = draw_trace(fitted_default(), requests=3000)
    held_out = load_trace("default").with_replay("open").window(0.0, 60.0)
    seen = cut_alike(drawn, held_out)
    assert len(seen) < len(drawn)
    arrival = seen.frame["arrival_s"].to_numpy()
    first = seen.frame.with_columns(start=pl.col("arrival_s").min().over("session"))["start"].to_numpy()
    assert (arrival // 60 == first // 60).all()
    assert cut_alike(drawn, load_trace("default")) is drawn
