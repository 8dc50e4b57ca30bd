"""Who is not ranked on a trace without prefix information, and that it is said wherever the trace is compared."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from policies import registry
from policies.contract import route
from research.cli import compose_config
from research.evidence import ranking, summary, words
from research.evidence.table import comparison_tables
from research.report import details, leaderboard
from research.study import study_from
from tests.research.studies import cell, study_summary

HEADER = "arrival_s,session,prompt_tokens,output_tokens\n"
TABLE = HEADER + "".join(f"{i},{i // 3},{100 + 80 * (i % 3)},5\n" for i in range(240))


def study(tmp_path, *given):
    (tmp_path / "talk.csv").write_text(TABLE)
    stock = (f"trace.path={tmp_path / 'talk.csv'}", "trace.format=table", "windows=2", "rate_per_s=[1]")
    return study_from(compose_config("compare", [*stock, f"out={tmp_path / 'o'}", *given]), "compare")


def reasons(made):
    return ranking.unranked(made, made.trace.load())


def said(made):
    return ranking.prefix_words(made, made.trace.load(), reasons(made))


def test_affinity_is_deciding_by_sessions_and_not_reading_matches():
    by_session = {name for name in registry.names() if ranking.affinity_signals(registry.load(name), sessions=True)}
    alone = {name for name in registry.names() if ranking.affinity_signals(registry.load(name), sessions=False)}
    assert by_session == {"ppd", "always_local", "learned"}
    assert alone == {"ppd"}  # where no session has a last turn, that field keeps nothing together
    assert ranking.affinity_signals(registry.load("guard"), sessions=True) == ()


def test_sessions_without_chains_are_no_prefix_information(tmp_path):
    made = study(tmp_path, "policies=[round_robin,ppd]")
    assert made.trace.load().n_sessions > 1
    assert reasons(made) == {"ppd": "decides by session, turn, last_decode"}
    not_ranked, not_in_figures = said(made)
    assert not_ranked.startswith(
        "prefix-aware policies are not ranked on this trace (ppd): it has no prefix information (it has sessions, "
    )
    assert not_in_figures == "What prefix caches would give to guard is not in these figures."


def test_chains_make_all_of_them_ranked(tmp_path):
    made = study(tmp_path, "policies=[round_robin,ppd]", "trace.options.context=grows")
    assert reasons(made) == {}
    assert said(made) == []


def test_who_knows_that_nothing_is_shared_may_say_so(tmp_path):
    from research.errors import ResearchError

    made = study(tmp_path, "policies=[round_robin,ppd]", "no_shared_prefixes=true")
    assert reasons(made) == {}
    assert "ranked as told (no_shared_prefixes=true)" in said(made)[0]
    with pytest.raises(ResearchError, match=r"no_shared_prefixes=true: trace .* records which prefixes are shared"):
        study(tmp_path, "no_shared_prefixes=true", "trace.options.context=grows")


class Silent:
    """Says nothing of what it reads."""

    def route(self, request, view):
        return route(0, 2)


class Keeping(Silent):
    needs = ("session", "decode_requests")


def test_an_object_that_declares_nothing_is_ranked_and_what_that_leaves_open_is_said(tmp_path):
    target = "tests.research.evidence.test_ranking"
    custom = [f"{{name: custom, target: '{target}:{c}'}}" for c in ("Silent", "Keeping")]
    made = study(tmp_path, f"policies=[round_robin,{','.join(custom)}]")
    assert reasons(made) == {"Keeping": "decides by session"}
    assert any(line.startswith("Silent: declares no needs, so whether its place") for line in said(made))


def test_a_replay_is_not_ranked_on_any_trace():
    choices = [SimpleNamespace(label="logged", replays=True), SimpleNamespace(label="guard", replays=False)]
    trace = SimpleNamespace(prefix_block_tokens=16, n_sessions=0)
    made = SimpleNamespace(entrants=choices, no_shared_prefixes=False)
    assert ranking.unranked(made, trace) == {"logged": ranking.REPLAYS}


def render(table):
    console = Console(width=220, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_rows_are_marked_and_the_better_of_them_are_named():
    made = study_summary({"ppd": 9.0, "guard": 8.0, "round_robin": 2.0}, prefixes=False)
    text = render(comparison_tables(made, 220)[0])
    assert text.count("ppd*") == 2
    assert "guard*" not in text
    assert made["words"][0] == "Among the ranked policies: guard wins at every load."
    assert any("above it, but not ranked: ppd (" in line for line in made["words"])


def test_where_nobody_is_ranked_there_is_no_winner_but_still_a_table():
    cells = [cell("guard", 8.0), cell("deflect", 7.0)]
    (winner,) = summary.winners(cells, "tight", ["guard", "deflect"])
    assert (winner["leader"], winner["proven"], winner["unranked_above"]) == (None, False, [])
    assert words.verdict(winner, "requests").endswith(": no policy is ranked.")
    made = study_summary({"guard": 8.0, "ppd": 7.0}, prefixes=False)
    made["unranked"] = ["guard", "ppd"]
    made["winners"] = summary.winners(
        [cell(p, g, load, rate) for load, rate in ((0.8, 8.0), (1.0, 10.0)) for p, g in (("guard", 8.0), ("ppd", 7.0))],
        "tight",
        made["unranked"],
    )
    assert words.say(made)
    assert "guard (reference)*" in render(comparison_tables(made, 220)[0])
    assert [block["winner"]["leader"] for block in leaderboard(made)] == [None, None]
    assert details(made)["metrics"]
