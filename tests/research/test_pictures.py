"""What the pictures of calibrate and validate say: labels, legends, tick labels. Not their pixels."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from matplotlib import pyplot as plt

from envs.hardware.load import load_handover, load_profile
from envs.hardware.model_shape import load_model
from envs.hardware.sources.sm_share import Slowdown
from research.calibrating import factors, handover_picture, measuring_picture
from research.calibrating.handover import crossover_tokens
from research.validating import backtest_picture, picture

TOY = Path(measuring_picture.__file__).parents[2] / "envs" / "hardware" / "measure" / "toy.yaml"


@pytest.fixture
def kept(monkeypatch):
    """Figures that are saved, still open and laid out as they are in their files."""
    figures = []

    def keep(figure, *_, **__):
        figure.canvas.draw()
        figures.append(figure)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", keep)
    monkeypatch.setattr(plt, "close", lambda _: None)
    yield figures
    monkeypatch.undo()
    plt.close("all")


def words(legend):
    return [text.get_text() for text in legend.get_texts()]


def covers(legend, axes):
    return legend.get_window_extent().overlaps(axes.get_window_extent())


def test_the_handover_picture_names_each_line_and_the_crossings_in_its_legends(kept, tmp_path):
    profile = load_profile("llama-3.1-70b-fp8-h100-tp4")
    laws = [load_handover(name, gpus=4) for name in ("nixl-nvlink", "nixl-rdma", "nvlink")]
    assert handover_picture.draw(load_model("llama-3.1-70b"), laws, 4096, 16, profile, tmp_path / "a.png")
    left, right = kept[0].axes
    near, far = (crossover_tokens(profile, law) for law in laws[:2])
    assert words(left.get_legend()) == [
        f"nixl-nvlink: pays from {near:,} tokens on",
        f"nixl-rdma: pays from {far:,} tokens on",
        "nvlink: pays at every length",
        "computing again, idle worker",
        "4,096 tokens, the prompt on the right",
    ]
    assert words(right.get_legend()) == ["nixl-nvlink", "nixl-rdma", "nvlink"]
    assert not list(left.texts)  # crossings lie on one another, so their lengths cannot stand beside them
    marked = [line.get_xdata()[line.get_markevery()].tolist() for line in left.lines if line.get_marker() != "None"]
    assert marked == [[near], [far]]
    assert not any(covers(axes.get_legend(), axes) for axes in (left, right))


def test_a_handover_picture_without_a_profile_has_no_crossings(kept, tmp_path):
    laws = [load_handover("tcp")]
    assert handover_picture.draw(load_model("deepseek-v3"), laws, 512, 16, None, tmp_path / "a.png")
    assert words(kept[0].axes[0].get_legend()) == ["tcp", "512 tokens, the prompt on the right"]


def test_factors_name_lengths_in_words(kept):
    ratios = pl.DataFrame({"n_decode": [1, 1, 128], "ratio": [1.0, 1.1, 2.0]})
    shares = [
        Slowdown("prefill", tokens, share, 1.0, 1.0, 1.0, 1, 0.0) for tokens in ("lt1k", "4k-16k") for share in (0.5, 1)
    ]
    left, right = factors._figure({"one": (ratios, ("", ""))}, shares).axes
    assert words(right.get_legend())[:2] == ["prefill, < 1K tokens", "prefill, 4K to 16K tokens"]
    assert "bands 10 to 90 %" in left.get_title("left") + left.get_title()
    assert [label.get_text() for label in left.get_xticklabels()][:4] == ["1", "2", "4", "8"]


def generation(shape, tokens=(16, 32, 64)):
    return pl.DataFrame(
        [
            {"num_heads": shape.heads, "batch_size": batch, "step": n - 1, "latency": 0.01 * batch * n}
            for batch in (1, 2, 4)
            for n in tokens
        ]
    )


@pytest.mark.parametrize("tokens", [(16, 32, 64), (40, 64), (1100, 1110), (4200, 4500), (128, 1024, 131_072)])
def test_measured_ticks_are_plain_and_apart(kept, tmp_path, tokens):
    shape = load_model(TOY)
    rises = [{"batch": 1, "new": 16, **dict.fromkeys(measuring_picture.FIGURES, 0.1)}]
    frames = {"generation_attention": generation(shape, tokens)}
    assert measuring_picture.draw(shape, frames, rises, "toy on a CPU", tmp_path / "a.png")
    axes = kept[0].axes
    assert not any("GPU" in panel.get_title(loc) for panel in axes for loc in ("left", "center"))
    decodes = axes[2]
    assert words(decodes.get_legend()) == ["1 decode", "4 decodes"]
    assert axes[3].get_xticklabels()[0].get_text() == "1 decode,\n16 new"
    low, high = decodes.get_xlim()
    ticks = decodes.xaxis.get_major_ticks() + decodes.xaxis.get_minor_ticks()
    shown = [t.label1 for t in ticks if low <= t.get_loc() <= high and t.label1.get_text()]
    assert len(shown) >= 2
    assert all(label.get_text().replace(",", "").isdigit() for label in shown)
    boxes = sorted((label.get_window_extent() for label in shown), key=lambda box: box.x0)
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


def runs(**columns):
    base = {"engine": ["vllm", "vllm", "sglang"], "layout": ["colocated"] * 3}
    for source in ("measured", "predicted"):
        base |= {f"{source}_{name}_s": [0.1, 0.2, 0.4] for name in ("ttft", "tpot")}
        base[f"{source}_tokens_per_gpu"] = [10.0, 20.0, 30.0]
    base |= {f"{end}_{name}_s": [0.1, 0.2, 0.4] for name in ("ttft", "tpot") for end in ("low", "high")}
    return pl.DataFrame(base | columns)


def test_runs_are_covered_by_no_legend_that_tells_band_and_whiskers(kept, tmp_path):
    assert picture.draw(runs(high_ttft_s=[0.1, 0.3, 0.5]), "three runs", tmp_path / "a.png")
    (legend,) = kept[0].legends
    assert words(legend) == [
        "sglang, colocated",
        "vllm, colocated",
        "predicted as measured",
        "grey band: within a factor of 1.1",
        "whiskers: least to greatest over the rounds that a run may have had",
    ]
    assert all(axes.get_legend() is None and not covers(legend, axes) for axes in kept[0].axes)


def test_whiskers_are_told_where_there_are_some(kept, tmp_path):
    assert picture.draw(runs(), "known rounds", tmp_path / "a.png")
    assert not any("whiskers" in text for text in words(kept[0].legends[0]))


def requests(**columns):
    base = {f"{side}_{name}_s": [0.1, 0.2, 0.4] for side in ("logged", "simulated") for name in ("ttft", "tpot")}
    return pl.DataFrame(base | {"level": ["low", "middle", "high"]} | columns)


def test_a_backtest_is_drawn_request_by_request(kept, tmp_path):
    frame = requests(simulated_tpot_s=[0.1, None, 0.3])
    assert backtest_picture.drawn(frame, r"a $\no$ log", tmp_path / "a.png") == [f"picture  {tmp_path / 'a.png'}"]
    left, right = kept[0].axes
    assert (left.get_title("left"), right.get_title("left")) == ("TTFT of 3 requests", "TPOT of 2 requests")
    assert all(axes.get_xscale() == axes.get_yscale() == "log" for axes in (left, right))
    high = next(line for line in right.lines if line.get_label() == "high load")
    assert (high.get_xdata().tolist(), high.get_ydata().tolist()) == ([400.0], [300.0])
    (legend,) = kept[0].legends
    assert words(legend)[:4] == ["low load", "middle load", "high load", "simulated as logged"]
    assert not covers(legend, left)


def test_a_log_with_one_time_has_one_panel_and_without_times_none(kept, tmp_path):
    none = pl.Series([None] * 3, dtype=pl.Float64)
    assert backtest_picture.drawn(requests(logged_ttft_s=none), "log", tmp_path / "a.png")
    assert len(kept[0].axes) == 1
    assert backtest_picture.drawn(requests(logged_ttft_s=none, logged_tpot_s=none), "log", tmp_path / "b.png") == []
