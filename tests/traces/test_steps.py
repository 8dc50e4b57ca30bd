"""Steps by name, and what must hold of every transform whatever the trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.test_transform import labelled_sessions, sessions_trace
from traces import Trace, TraceError, transform
from traces.catalog import ENTRIES, fixed_cuts, zones
from traces.describe import ideal_hit_share
from traces.steps import STEPS, apply_steps, arguments

replays = st.sampled_from(["open", "closed"])
seeds = st.integers(0, 1000)
some = settings(max_examples=40)


def tokens(trace: Trace) -> tuple[int, int]:
    return int(trace.frame["prompt_tokens"].sum()), int(trace.frame["output_tokens"].sum())


def content(trace: Trace) -> list[tuple[Any, ...]]:
    """Requests by what they are, without the numbers of their sessions."""
    return sorted(trace.frame.select("arrival_s", "turn", "prompt_tokens", "output_tokens").rows())


@some
@given(seed=seeds, draw=seeds, replay=replays, keep=st.floats(0.2, 0.8))
def test_thin_and_its_complement_are_the_whole(seed: int, draw: int, replay: str, keep: float) -> None:
    trace = sessions_trace(replay, seed=seed)
    kept, rest = (transform.thin(trace, keep, seed=draw, complement=c) for c in (False, True))
    assert content(trace) == sorted(content(kept) + content(rest))
    assert kept.n_sessions + rest.n_sessions == trace.n_sessions
    assert kept.duration_s == rest.duration_s == trace.duration_s
    assert transform.thin(trace, keep, seed=draw).sha256 == kept.sha256


@some
@given(
    seed=seeds,
    copies=st.integers(1, 4),
    replay=replays,
    prefixes=st.sampled_from(["own", "shared", "private"]),
    cuts_s=st.sampled_from([(), (40.0, 60.0)]),
)
def test_superpose_conserves(seed: int, copies: int, replay: str, prefixes: str, cuts_s: tuple[float, ...]) -> None:
    trace = sessions_trace(replay)
    many = transform.superpose(trace, copies, seed=seed, prefixes=prefixes, cuts_s=cuts_s)
    assert len(many) == copies * len(trace)
    assert tokens(many) == tuple(copies * n for n in tokens(trace))
    assert many.chain_ids.size == copies * trace.chain_ids.size
    assert many.n_prefix_ids == trace.n_prefix_ids * (1 if prefixes == "shared" else copies)  # none is shared here
    if replay == "closed":
        assert many.n_sessions == copies * trace.n_sessions
    assert many.duration_s == trace.duration_s
    edges = [0.0, *cuts_s, trace.duration_s]
    per_zone = [np.histogram(fixed(t), edges)[0] for t in (trace, many)]
    assert (per_zone[1] == copies * per_zone[0]).all()
    assert transform.superpose(trace, copies, seed=seed, prefixes=prefixes, cuts_s=cuts_s).sha256 == many.sha256


def fixed(trace: Trace) -> Any:
    frame = trace.frame if trace.replay == "open" else trace.frame.filter(pl.col("turn") == 1)
    return frame["arrival_s"].to_numpy()


def test_own_prefixes_keep_what_sessions_share() -> None:
    system = Trace.build(
        "t",
        {"arrival_s": [0.0, 1.0], "session": [0, 1], "prompt_tokens": [20, 20], "output_tokens": [1, 1]},
        chain_offsets=np.array([0, 2, 4]),
        chain_ids=np.array([0, 1, 0, 2]),
        prefix_block_tokens=10,
        duration_s=2.0,
    )
    ids = {p: transform.superpose(system, 3, prefixes=p).n_prefix_ids for p in ("shared", "own", "private")}
    assert ids == {"shared": 3, "own": 7, "private": 9}


@some
@given(seed=seeds, factor=st.floats(0.01, 100.0), replay=replays)
def test_scaling_there_and_back_is_the_identity(seed: int, factor: float, replay: str) -> None:
    trace = sessions_trace(replay, seed=seed)
    back = trace.scale_rate(factor).scale_rate(1 / factor)
    assert back.frame["arrival_s"].to_numpy() == pytest.approx(trace.frame["arrival_s"].to_numpy(), abs=1e-6)
    assert back.duration_s == pytest.approx(trace.duration_s)
    same = ["turn", "think_s", "prompt_tokens", "output_tokens"]
    assert back.frame.select(same).equals(trace.frame.select(same))
    assert np.array_equal(back.chain_ids, trace.chain_ids)
    if replay == "open":
        assert trace.scale_rate(2.0).scale_rate(0.5).sha256 == trace.sha256  # halves and doubles are exact


@some
@given(seed=seeds, replay=replays, cuts_s=st.sampled_from([(), (40.0, 60.0)]))
def test_resample_keeps_starts_and_whole_sessions(seed: int, replay: str, cuts_s: tuple[float, ...]) -> None:
    trace = labelled_sessions(replay)
    again = transform.resample(trace, seed=seed, cuts_s=cuts_s)
    source = dict(trace.frame.group_by("tenant").len().iter_rows())
    drawn = again.frame.group_by("tenant").len()
    for tenant, n in drawn.iter_rows():
        assert n % source[tenant] == 0  # every copy has all its turns
    if replay == "closed":
        assert fixed(again) == pytest.approx(fixed(trace), abs=1e-12)
        assert again.n_sessions == trace.n_sessions
    assert again.duration_s == trace.duration_s
    assert again.sha256 == transform.resample(trace, seed=seed, cuts_s=cuts_s).sha256
    assert again.sha256 != transform.resample(trace, seed=seed + 1, cuts_s=cuts_s).sha256


def test_copies_of_a_resampled_session_share_as_told() -> None:
    trace = sessions_trace("closed")
    hits = {p: ideal_hit_share(transform.resample(trace, prefixes=p)) for p in ("shared", "own", "private")}
    assert hits["shared"] > hits["own"] + 0.1
    assert hits["own"] == hits["private"]  # sessions share nothing with each other here


@some
@given(
    replay=replays,
    prompt=st.none() | st.integers(1, 300),
    output=st.none() | st.integers(1, 10),
    context=st.none() | st.integers(2, 300),
    over=st.sampled_from(["end", "cut"]),
)
def test_caps_hold(replay: str, prompt: int | None, output: int | None, context: int | None, over: str) -> None:
    if prompt is output is context is None:
        return
    trace = sessions_trace(replay)
    given = {"prompt_tokens": prompt, "output_tokens": output, "context_tokens": context}
    shortest = min(prompt or 300, (context or 300) - 1)
    if over == "end" and shortest < trace.frame["prompt_tokens"].min():  # type: ignore[operator]
        with pytest.raises(TraceError, match="at least one request"):
            transform.cap(trace, over=over, **given)
        return
    part = transform.cap(trace, over=over, **given)
    frame = part.frame
    most = {"prompt_tokens": prompt, "output_tokens": output}
    assert all(frame[column].max() <= bound for column, bound in most.items() if bound)  # type: ignore[operator]
    assert context is None or (frame["prompt_tokens"] + frame["output_tokens"]).max() <= context  # type: ignore[operator]
    if over == "cut":
        assert len(part) == len(trace)
    else:  # what is left are the first turns of sessions, as they were but for their outputs
        assert set(part.frame.select("arrival_s", "turn", "prompt_tokens").rows()) <= set(
            trace.frame.select("arrival_s", "turn", "prompt_tokens").rows()
        )


def test_a_capped_output_leaves_later_prompts_and_their_blocks() -> None:
    trace = Trace.build(
        "t",
        {
            "arrival_s": [0.0, 1.0],
            "session": [0, 0],
            "turn": [1, 2],
            "think_s": [None, 0.5],
            "prompt_tokens": [20, 60],
            "output_tokens": [25, 5],
        },
        chain_offsets=np.array([0, 4, 10]),
        chain_ids=np.array([0, 1, 2, 3, 0, 1, 2, 3, 4, 5]),
        prefix_block_tokens=10,
    )
    short = transform.cap(trace, output_tokens=15)
    assert [short.chain(i).tolist() for i in range(2)] == [[0, 1, 2], [0, 1, 2, 3, 4, 5]]
    assert short.frame["prompt_tokens"].to_list() == [20, 60]
    cut = transform.cap(trace, prompt_tokens=45, over="cut")
    assert [cut.chain(i).tolist() for i in range(2)] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert len(transform.cap(trace, prompt_tokens=45)) == 1


@some
@given(draw=seeds, chance=st.floats(0.05, 1.0), retry=st.floats(0.0, 1.0), retries=st.integers(0, 3), replay=replays)
def test_cancels_and_retries(draw: int, chance: float, retry: float, retries: int, replay: str) -> None:
    trace = sessions_trace(replay)
    part = transform.cancel(trace, chance, after_s=2.0, retry=retry, retry_after_s=1.0, retries=retries, seed=draw)
    new = len(part) - len(trace)
    cancelled = len(part) - part.frame["cancel_after_s"].null_count()
    assert 0 <= new <= cancelled
    assert part.n_sessions == trace.n_sessions
    assert (part.frame["session"] < 0).sum() == new
    assert part.duration_s == trace.duration_s
    assert (
        part.sha256
        == transform.cancel(
            trace, chance, after_s=2.0, retry=retry, retry_after_s=1.0, retries=retries, seed=draw
        ).sha256
    )


@some
@given(draw=seeds, replay=replays)
def test_jitter_stays_inside_the_stamp(draw: int, replay: str) -> None:
    coarse = sessions_trace(replay)
    stamps = (coarse.frame["arrival_s"].to_numpy() // 3) * 3
    if replay == "closed":
        start = transform.session_starts(coarse)
        stamps = coarse.frame["arrival_s"].to_numpy() - start + (start // 3) * 3
    coarse = Trace.build("c", coarse.frame.with_columns(pl.Series("arrival_s", stamps)), replay=replay)
    spread = transform.jitter(coarse, 3.0, seed=draw)
    before, after = np.sort(fixed(coarse)), np.sort(fixed(spread))
    assert ((after // 3) * 3 == before).all()
    assert tokens(spread) == tokens(coarse)
    with pytest.raises(TraceError, match="width_s=7"):
        transform.jitter(coarse, 7.0)


def test_filters_by_whole_sessions_or_by_request() -> None:
    trace = labelled_sessions("open")
    by_session = transform.select(trace, prompt_tokens=[None, 128])
    assert set(by_session.frame["tenant"]) == {
        tenant
        for tenant, most in trace.frame.group_by("tenant").agg(pl.max("prompt_tokens")).iter_rows()
        if most <= 128
    }
    by_request = transform.select(trace, prompt_tokens=[65, None], by="request")
    assert len(by_request) == trace.frame.filter(pl.col("prompt_tokens") > 64).height
    assert by_request.frame["turn"].min() == 1
    pairs = transform.select(trace, turns=[2, 2])
    assert set(pairs.frame.group_by("session").len()["len"]) == {2}
    assert set(transform.select(trace, tenants=["3", "4"]).frame["tenant"]) == {"3", "4"}
    with pytest.raises(TraceError, match="tenants"):
        transform.select(trace, tenants="no one")


def test_merged_tenants_share_nothing() -> None:
    one, two = sessions_trace("open"), sessions_trace("open", seed=5)
    both = transform.merge({"a": one, "b": two})
    assert tokens(both) == tuple(x + y for x, y in zip(tokens(one), tokens(two), strict=True))
    assert both.n_sessions == one.n_sessions + two.n_sessions
    assert both.n_prefix_ids == one.n_prefix_ids + two.n_prefix_ids
    assert both.classes == ("a", "b")
    assert set(both.frame["tenant"]) == {"a", "b"}
    for label, trace in (("a", one), ("b", two)):
        own = transform.select(both, classes=label)
        assert content(own) == content(trace)
        assert ideal_hit_share(own) == ideal_hit_share(trace)


def test_blocks_of_different_size_are_refused_or_coarsened() -> None:
    fine = sessions_trace("open")
    coarse = transform.coarsen_blocks(fine, 128)
    assert coarse.prefix_block_tokens == 128
    assert np.array_equal(np.diff(coarse.chain_offsets), np.diff(fine.chain_offsets) // 2)
    with pytest.raises(TraceError, match="coarsen=true makes all 128"):
        transform.merge({"a": fine, "b": coarse})
    assert transform.merge({"a": fine, "b": coarse}, coarsen=True).prefix_block_tokens == 128
    with pytest.raises(TraceError, match="multiple"):
        transform.coarsen_blocks(fine, 100)


# ---------------------------------------------------------------------------------------------- steps by name

EVERY: list[dict[str, Any]] = [
    {"name": "window", "start_s": 10, "end_s": 90},
    {"name": "rate", "factor": 2},
    {"name": "superpose", "copies": 2, "seed": 1},
    {"name": "thin", "keep": 0.5, "seed": 1},
    {"name": "resample", "seed": 1},
    {"name": "cap", "output_tokens": 5},
    {"name": "filter", "turns": [2, None]},
    {"name": "coarsen", "block_tokens": 128},
    {"name": "cancel", "chance": 0.5, "after_s": 1.0, "seed": 1},
]


@pytest.mark.parametrize("step", EVERY, ids=lambda step: step["name"])
@pytest.mark.parametrize("replay", ["open", "closed"])
def test_each_step_is_recorded_and_equal_steps_give_equal_hashes(step: dict[str, Any], replay: str) -> None:
    trace = sessions_trace(replay)
    done, again = (apply_steps(trace, [step]).trace for _ in range(2))
    assert done.sha256 == again.sha256 != trace.sha256
    assert len(done.provenance) > len(trace.provenance)
    assert done.name != trace.name or step["name"] == "coarsen"


def test_the_list_above_has_every_step_that_fits_any_trace() -> None:
    assert {step["name"] for step in EVERY} | {"jitter", "merge"} == set(STEPS)


def test_the_order_of_steps_matters() -> None:
    trace = sessions_trace("open")
    steps = [{"name": "rate", "factor": 2}, {"name": "window", "start_s": 0, "end_s": 50}]
    assert len(apply_steps(trace, steps).trace) > len(apply_steps(trace, steps[::-1]).trace)


def test_fixed_cuts_mean_the_same_time_of_the_source_after_any_clock() -> None:
    trace = sessions_trace("open", n=400, turns=1)
    told = [f"{ENTRIES['azure_conv'].source}; as the catalogue says it"]
    frame = trace.frame.with_columns(pl.col("arrival_s") * 24)
    trace = Trace.build("azure_conv", frame, duration_s=2400.0, provenance=told)
    assert fixed_cuts(trace) == (960.0, 1440.0, 2400.0)
    plain = zones(trace)
    scaled = apply_steps(trace, [{"name": "rate", "factor": 4}])
    assert scaled.cuts_s == (240.0, 360.0, 600.0)
    parts = zones(scaled.trace, scaled.cuts_s)
    assert {zone: len(part) for zone, part in parts.items()} == {zone: len(part) for zone, part in plain.items()}
    assert {zone: tokens(part) for zone, part in parts.items()} == {z: tokens(part) for z, part in plain.items()}
    later = apply_steps(trace, [{"name": "rate", "factor": 4}, {"name": "window", "start_s": 100, "end_s": 500}])
    assert later.cuts_s == (140.0, 260.0, 400.0)
    assert zones(later.trace, later.cuts_s)["validation"].sha256 == parts["validation"].sha256


MOVES: list[dict[str, Any]] = [
    {"name": "superpose", "copies": 3, "seed": 3},
    {"name": "resample", "seed": 3},
    {"name": "cancel", "chance": 1.0, "after_s": 20.0, "retry": 1.0, "retry_after_s": 10.0, "retries": 2, "seed": 3},
]


@pytest.mark.parametrize("step", MOVES, ids=lambda step: str(step["name"]))
@pytest.mark.parametrize("replay", ["open", "closed"])
def test_nothing_moves_from_train_to_test(step: dict[str, Any], replay: str) -> None:
    done = apply_steps(labelled_sessions(replay), [step])
    users = {zone: set(part.frame["tenant"]) for zone, part in zones(done.trace, done.cuts_s).items()}
    assert not users["train"] & users["test"]


def test_merge_by_name(tmp_path: Path) -> None:
    from traces.readers import canonical

    canonical.write(sessions_trace("closed", seed=9), tmp_path / "mine.parquet")
    step = {"name": "merge", "label": "chat", "others": [{"path": str(tmp_path / "mine.parquet"), "label": "own"}]}
    both = apply_steps(sessions_trace("closed"), [step]).trace
    assert both.classes == ("chat", "own")
    with pytest.raises(TraceError, match=r"others\.pth.*did you mean 'path'"):
        apply_steps(both, [{"name": "merge", "others": [{"name": "default", "pth": 1}]}])


WRONG: list[tuple[Any, str]] = [
    ({"name": "thinn", "keep": 0.5}, "did you mean 'thin'"),
    ({"name": "thin", "kep": 0.5}, "did you mean 'keep'"),
    ({"name": "thin"}, r"trace\.steps\[0\].*keep.*needs"),
    ({"name": "thin", "keep": 2}, "between 0 and 1"),
    ({"name": "thin", "keep": 0.5, "seed": -1}, "seed"),
    ({"name": "thin", "keep": 0.5, "complement": "yes"}, "true or false"),
    ({"keep": 0.5}, "name: STEP"),
    ("thin", "name: STEP"),
    ({"name": "superpose", "copies": 1.5}, "whole number"),
    ({"name": "superpose", "copies": 2, "prefixes": "privat"}, "did you mean 'private'"),
    ({"name": "cap"}, "prompt_tokens, output_tokens, context_tokens"),
    ({"name": "cap", "output_tokens": 5, "over": "edn"}, "did you mean 'end'"),
    ({"name": "filter"}, "something to choose by"),
    ({"name": "filter", "turns": 3}, "lowest, highest"),
    ({"name": "cancel", "chance": 0.5, "after_s": 0}, "after_s"),
    ({"name": "window", "start_s": "a", "end_s": 3}, "start_s"),
    ({"name": "merge", "others": 3}, "list of traces"),
    ({"name": "merge", "others": [{"name": 5}]}, "5: expected"),
    ({"name": "merge", "others": [{"name": "default", "options": 5}]}, r"others\.options"),
    ({"name": "merge", "others": [{"name": "default", "options": {5: 5}}]}, r"others\.options"),
    ({"name": "merge", "others": [{"name": "default", "options": {"format": "azure"}}]}, r"others\.options"),
    ({"name": "merge", "others": [{"name": "default", "steps": 5}]}, r"trace\.steps: found 5, expected a list"),
    ({"name": "merge", "others": [{"path": "x.csv", "format": 5}]}, r"others\.format"),
    ({"name": "filter", "classes": []}, "a list of names"),
    ({"name": "filter", "tenants": {"a": 1}}, "a list of names"),
    ({"name": "filter", "models": 0}, "a column 'model'"),
    ({"name": "filter", "turns": [2**70, None]}, "turns"),
    ({"name": "coarsen", "block_tokens": "x"}, "block_tokens"),
    ({"name": "coarsen", "block_tokens": 128.0}, "block_tokens"),
    ({"name": "coarsen", "block_tokens": 64 * 2**60}, "block_tokens"),
    ({"name": "cap", "output_tokens": 2**70}, "output_tokens"),
    ({"name": "cap", "context_tokens": 2**63}, "context_tokens"),
    ({"name": "superpose", "copies": 10**9}, "copies"),
    ({"name": "cancel", "chance": 1, "after_s": 1e-9, "retry": 1, "retries": 10**9}, "retries"),
    ({"name": "rate", "factor": 2**2000}, "factor"),
    ({"name": "window", "start_s": 0, "end_s": 2**2000}, "end_s"),
]


@pytest.mark.parametrize(("step", "message"), WRONG)
def test_a_wrong_step_is_told(step: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        apply_steps(sessions_trace(), [step])


def test_names_that_yaml_takes_for_numbers() -> None:
    trace = labelled_sessions("closed")
    one = apply_steps(trace, [{"name": "filter", "tenants": 3}]).trace
    assert set(one.frame["tenant"]) == {"3"}
    assert apply_steps(trace, [{"name": "filter", "tenants": [3]}]).trace.sha256 == one.sha256
    assert apply_steps(trace, [{"name": "merge", "label": 5, "others": ["default"]}]).trace.name == "5+default"


def test_every_trace_of_the_configuration_takes_steps(root: Path) -> None:
    for file in (root / "conf" / "trace").glob("*.yaml"):
        assert yaml.safe_load(file.read_text("utf-8"))["steps"] == [], file.name


def test_the_page_on_transforms_lists_every_step_and_argument(root: Path) -> None:
    lines = (root / "docs" / "traces" / "transforms.md").read_text("utf-8").splitlines()
    for name in STEPS:
        row = next(line for line in lines if line.startswith(f"| `{name}` |"))
        for argument in arguments(name):
            assert f"`{argument}`" in row, (name, argument)
