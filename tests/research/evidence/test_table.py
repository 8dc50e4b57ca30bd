"""The printed table."""

from __future__ import annotations

import io
import math

from rich.console import Console

from research.evidence.table import comparison_tables, detail_table, kv_mb_per_request, number, with_interval
from tests.research.studies import study_summary


def render(*tables, width=220):
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    for table in tables:
        console.print(table)
    return console.file.getvalue()


def wide(made):
    (table,) = comparison_tables(made, 220)
    return table


def test_a_narrow_terminal_gets_several_tables_with_nothing_cut():
    made = study_summary({"round_robin": 5.0, "guard": 8.0})
    for width in (80, 100, 160):
        text = render(*comparison_tables(made, width), width=width)
        assert "…" not in text
        assert max(len(line) for line in text.splitlines()) <= width
        assert text.count("round_robin") == 5
        for part in ("attained", "TTFT", "deflect", "pred.", "0.8"):
            assert part in text


def test_digits_follow_the_width_of_the_interval():
    assert with_interval(22.0312, 20.11, 23.94) == "22.0 \\[20.1, 23.9]"
    assert with_interval(0.97654, 0.97011, 0.98123) == "0.977 \\[0.970, 0.981]"
    assert with_interval(-4.1, -7.66, -0.44, sign=True) == "-4.10 \\[-7.66, -0.44]"
    assert with_interval(5.0, None, None) == "5"
    assert with_interval(None, None, None) == "-"
    assert number(math.nan, "{:.1f}") == "-"


def test_all_policies_and_loads_are_there_and_the_proven_winner_is_marked():
    text = render(wide(study_summary({"round_robin": 5.0, "guard": 8.0})))
    assert text.count("guard (reference) ✓") == 2
    assert text.count("round_robin") == 2
    for part in ("goodput/s", "[95 %]", "Δ goodput vs", "guard [Holm]", "20% off", "KV MB", "125.0", "0.8"):
        assert part in text


def test_nothing_is_marked_where_no_winner_is_proven():
    assert "✓" not in render(wide(study_summary({"deflect": 8.02, "guard": 8.0}, spread=1.0)))


def test_policies_that_are_not_ranked_have_a_star():
    assert "ppd*" in render(wide(study_summary({"ppd": 5.0, "guard": 8.0}, prefixes=False)))


def test_moved_kv_is_told_a_request():
    assert kv_mb_per_request({"kv_moved_bytes": {"estimate": 3e9}, "requests": {"estimate": 20.0}}) == 150.0
    assert kv_mb_per_request({"kv_moved_bytes": {"estimate": 0.0}, "requests": {"estimate": 0.0}}) is None
    assert kv_mb_per_request({}) is None


def test_detail_has_every_figure_with_its_interval():
    text = render(detail_table(study_summary({"round_robin": 5.0, "guard": 8.0}), "guard"))
    for part in ("goodput_per_s", "ttft_p99_s", "load 0.8 (8.00 requests/s)", "["):
        assert part in text
