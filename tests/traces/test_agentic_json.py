from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.traces.samples import parquet, write
from tests.traces.samples_conversations import archive, request, session
from traces import Trace, TraceError, load_trace
from traces.catalog import ENTRIES
from traces.readers import canonical
from traces.source import read_source


def read(tmp_path: Path, sessions: list[dict[str, Any]] | None = None, **options: Any) -> Trace:
    path = write(tmp_path, "traces.tar", archive([session()] if sessions is None else sessions))
    return load_trace(path, **({"prefix_block_tokens": 64} | options))


def rows(trace: Trace, first_prompt: int) -> list[int]:
    """Rows of the stream whose first prompt is that long."""
    frame = trace.frame.with_row_index("row")
    start = frame.filter((pl.col("turn") == 1) & (pl.col("prompt_tokens") == first_prompt))["session"][0]
    return frame.filter(pl.col("session") == start).sort("turn")["row"].to_list()


def test_streams_are_closed_loop_sessions_and_keep_the_logged_ttft(tmp_path: Path) -> None:
    trace = read(tmp_path)
    assert (trace.replay, trace.n_sessions, len(trace)) == ("closed", 2, 6)
    own = trace.frame[rows(trace, 300)]
    assert own["prompt_tokens"].to_list() == [300, 400, 600, 200]
    assert own["ttft_s"].to_list() == [0.5, None, None, None]
    assert own["model"].unique().to_list() == ["m"]


def test_a_think_time_does_not_hold_a_turn_whose_end_is_unknown(tmp_path: Path) -> None:
    trace = read(tmp_path)
    # 40 - 17 - (2 + 0.018 * 5), not the 33 that are recorded from the end of turn 2.
    assert trace.frame[rows(trace, 300)]["think_s"].to_list() == [None, 3.0, 10.0, pytest.approx(20.91)]
    assert any("but for 1 turns after one without api_time" in note for note in trace.provenance)


def test_a_sub_agent_starts_where_it_did_in_its_session(tmp_path: Path) -> None:
    trace = read(tmp_path)
    parent, agent = rows(trace, 300), rows(trace, 200)
    start = trace.frame["arrival_s"]
    # Its stamp is its end: launched at 7.5 s, half a second after turn 2 ended (5 + 2).
    assert start[agent[0]] == pytest.approx(start[parent[1]] + 2.0 + 0.5)
    assert start[agent[1]] == pytest.approx(start[agent[0]] + 2.0 + 2.0)
    launched = session()
    launched["requests"][2] |= {"duration_ms": None, "status": "async_launched", "t": 7.5}
    again = read(tmp_path, [launched])
    assert again.frame["arrival_s"].to_list() == start.to_list()


def test_sub_agents_go_with_the_turn_that_launched_them_or_start_on_their_own(tmp_path: Path) -> None:
    short = read(tmp_path, max_turns=1)
    assert len(short) == 1
    assert any("1 are left out with the turn that launched them" in note for note in short.provenance)
    drawn = read(tmp_path, [session(), session() | {"tool_tokens": 1}], subagents="drawn", duplicates="keep")
    assert drawn.n_sessions == 4
    assert any("those of 2 sub-agents" in note for note in drawn.provenance)


def test_chains_are_the_recorded_ids_and_outputs_take_the_next_turns(tmp_path: Path) -> None:
    trace = read(tmp_path)
    one, two, three, compacted = (trace.chain(row).tolist() for row in rows(trace, 300))
    agent = trace.chain(rows(trace, 200)[0]).tolist()
    assert [len(one), len(two), len(three), len(compacted)] == [5, 7, 9, 3]
    assert one == two[:5]  # 300 + 30 tokens complete a fifth block
    assert two == three[:7]
    assert compacted[:2] == three[:2] == agent[:2]
    assert compacted[2] not in three
    assert any("shrank (compaction) 22.2% of the blocks" in note for note in trace.provenance)


def test_an_output_that_does_not_reappear_leaves_no_blocks(tmp_path: Path) -> None:
    dropped = session()
    dropped["requests"] = [request(0.0, 300, 300, [1, 2, 3, 4]), request(9.0, 320, 5, [1, 2, 3, 4, 5])]
    trace = read(tmp_path, [dropped])
    assert len(trace.chain(0)) == 4
    assert any("1 do not: that prompt grew by less" in note for note in trace.provenance)


def test_coarse_blocks_name_the_whole_prefix(tmp_path: Path) -> None:
    trace = read(tmp_path, prefix_block_tokens=192)
    chains = [trace.chain(row).tolist() for row in rows(trace, 300)]
    assert [len(chain) for chain in chains] == [1, 2, 3, 1]
    assert chains[0] == chains[1][:1]
    assert chains[3][0] != chains[0][0]  # the third block of 64 differs


def test_sessions_share_nothing_unless_their_equal_prompts_are_assumed_to_be_one(tmp_path: Path) -> None:
    def other(tools: int) -> dict[str, Any]:
        twin = session() | {"tool_tokens": tools}
        twin["requests"] = [request(0.0, 320, 9, [1, 2, 3, 4, 5])]
        return twin

    def heads(tools: int, **options: Any) -> tuple[list[int], list[int]]:
        trace = read(tmp_path, [session(), other(tools)], **options)
        one, two = (trace.chain(rows(trace, tokens)[0]).tolist() for tokens in (300, 320))
        return one, two

    one, two = heads(128)
    assert not set(one) & set(two)
    one, two = heads(128, share_prompts=True)
    assert one[:3] == two[:3]  # 128 + 64 tokens
    assert not set(one[3:]) & set(two[3:])
    one, two = heads(127, share_prompts=True)
    assert not set(one) & set(two)


def test_recorded_ids_win_over_equal_counts(tmp_path: Path) -> None:
    # The sub-agent's counts are its parent's, but its third block is recorded as another.
    trace = read(tmp_path, share_prompts=True)
    parent, agent = (trace.chain(rows(trace, tokens)[0]).tolist() for tokens in (300, 200))
    assert (parent[:2], parent[2] == agent[2]) == (agent[:2], False)


def test_exact_copies_are_left_out_by_default(tmp_path: Path) -> None:
    two = [session(), session() | {"id": "again"}]
    assert read(tmp_path, two).n_sessions == 2
    assert read(tmp_path, two, duplicates="keep").n_sessions == 4


def test_a_file_a_folder_and_an_archive_are_one(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", "trace_0000.json", json.dumps(session()).encode())
    (tmp_path / "sub" / "README.md").write_text("not a session", "utf-8")
    hashes = {load_trace(p, format="agentic_json").sha256 for p in (tmp_path / "sub", tmp_path / "sub/trace_0000.json")}
    assert {read(tmp_path, prefix_block_tokens=512).sha256} == hashes


def bad(**changes: Any) -> dict[str, Any]:
    content = session()
    content["requests"][1] |= changes
    return content


@pytest.mark.parametrize(
    ("content", "row", "column"),
    [
        (bad(out=0), 2, "out"),
        (bad(t=-1.0), 2, "t"),
        (bad(type="x"), 2, "type"),
        (bad(hash_ids=[1, 2, 3]), 2, "hash_ids"),
        (bad(hash_ids=[1, 2, 3, 4, 5, "6"]), 2, "hash_ids"),
        (bad(hash_ids=[1, 2, 3, 5, 4, 6]), 2, "hash_ids"),
        (bad(think_time="long"), 2, "think_time"),
        (session() | {"block_size": 16}, None, "block_size"),
        (session() | {"requests": []}, None, "requests"),
    ],
)
def test_a_bad_value_names_file_request_and_field(
    tmp_path: Path, content: dict[str, Any], row: int | None, column: str
) -> None:
    with pytest.raises(TraceError) as raised:
        read(tmp_path, [session(), content])
    assert (raised.value.row, raised.value.column) == (row, column)
    assert raised.value.file.endswith("traces.tar/traces/trace_0001.json")


@pytest.mark.parametrize(
    "options",
    [{"subagents": "no"}, {"duplicates": "families"}, {"share_prompts": 1}, {"prefix_block_tokens": 100}],
)
def test_wrong_options_are_told(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match=rf"trace\.options\.{next(iter(options))}"):
        read(tmp_path, **options)


# ------------------------------------------------------------------------------- the public data
@pytest.fixture(scope="module")
def folder(public_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every twelfth published session, and those with sub-agents."""
    out = tmp_path_factory.mktemp("sessions")
    source = read_source(public_data / "traces/agentic_cc/traces.tar.zst")
    wanted = ("0004", "0010", "0270", "0282")
    for number, (name, data) in enumerate(source.members()):
        if number % 12 == 0 or any(name.endswith(f"{w}.json") for w in wanted):
            (out / Path(name).name).write_bytes(data)
    return out


def test_rows_tokens_and_round_trip(folder: Path, tmp_path: Path) -> None:
    trace = load_trace(folder, format="agentic_json", zero_output="one", duplicates="keep")
    count = prompt = output = streams = first_tokens = 0
    for path in folder.iterdir():
        lists = [json.loads(path.read_bytes())["requests"]]
        lists += [r["requests"] for r in lists[0] if r["type"] == "subagent"]
        for requests in lists:
            plain = [r for r in requests if r["type"] != "subagent"]
            streams += bool(plain)
            count += len(plain)
            prompt += sum(r["in"] for r in plain)
            output += sum(max(r["out"], 1) for r in plain)
            first_tokens += sum("ttft" in r for r in plain)
    assert (len(trace), trace.n_sessions) == (count, streams)
    assert (trace.frame["prompt_tokens"].sum(), trace.frame["output_tokens"].sum()) == (prompt, output)
    assert trace.frame["ttft_s"].count() == first_tokens > 0
    canonical.write(trace, tmp_path / "t.parquet")
    assert load_trace(tmp_path / "t.parquet").sha256 == trace.sha256


def test_the_derived_table_gives_the_same_chains_back(folder: Path, public_data: Path, tmp_path: Path) -> None:
    """Prompt blocks of each stream: a rebuilt id must stand for one recorded id, and the other way round."""
    table = pl.read_parquet(public_data / ENTRIES["agentic"].files[0])
    table = table.filter(pl.col("trace_id").is_in([path.stem for path in folder.iterdir()]))
    write(tmp_path, "requests.derived.parquet", parquet(table))
    options: dict[str, Any] = {"zero_output": "one", "duplicates": "keep"}
    rebuilt = prompt_chains(load_trace(tmp_path / "requests.derived.parquet", **options))
    recorded = prompt_chains(load_trace(folder, format="agentic_json", subagents="drawn", **options))
    assert rebuilt.keys() == recorded.keys()
    blocks = agree = 0
    for stream, chains in rebuilt.items():
        forth, back = dict[int, int](), dict[int, int]()
        for ours, theirs in zip(chains, recorded[stream], strict=True):
            blocks += len(ours)
            pairs = zip(ours, theirs, strict=True)
            agree += sum(forth.setdefault(a, b) == b and back.setdefault(b, a) == a for a, b in pairs)
    assert agree / blocks > 0.998  # 0.9992 over all 533 sessions


def prompt_chains(trace: Trace) -> dict[tuple[tuple[int, int], ...], list[list[int]]]:
    """Prompt blocks of each stream's turns, by the stream's lengths."""
    block = trace.prefix_block_tokens
    found = {}
    for part in trace.frame.with_row_index("row").sort("turn").partition_by("session"):
        lengths = tuple(zip(part["prompt_tokens"], part["output_tokens"], strict=True))
        found[lengths] = [
            trace.chain(row)[: prompt // block].tolist() for row, (prompt, _) in zip(part["row"], lengths, strict=True)
        ]
    return found


def test_recorded_order_is_kept(folder: Path) -> None:
    trace = load_trace(folder, format="agentic_json", zero_output="one")
    for part in trace.frame.partition_by("session"):
        assert all(b >= a for a, b in pairwise(part["arrival_s"]))
