from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.traces.samples import write
from tests.traces.samples_public import LLMSERVINGSIM, LLMSERVINGSIM_SESSIONS, call, lines
from traces import Trace, TraceError, load_trace


def read(tmp_path: Path, records: list[dict[str, Any]], **options: Any) -> Trace:
    return load_trace(write(tmp_path, "w.jsonl", lines(records)), **options)


def test_flat_requests(tmp_path: Path) -> None:
    trace = read(tmp_path, LLMSERVINGSIM)
    assert trace.frame["arrival_s"].to_list() == [0.5, 0.75]
    assert trace.frame["prompt_tokens"].to_list() == [40, 70]
    assert (trace.replay, trace.n_sessions, trace.prefix_block_tokens) == ("open", 0, 0)
    assert "no token ids, and so no prefixes known" in trace.provenance


def test_a_session_waits_for_its_tools(tmp_path: Path) -> None:
    trace = read(tmp_path, LLMSERVINGSIM_SESSIONS, assumed_ttft_s=1.0, assumed_tpot_s=0.1)
    frame = {
        p: (t, think, at) for p, t, think, at in trace.frame[["prompt_tokens", "turn", "think_s", "arrival_s"]].rows()
    }
    assert frame[100] == (1, None, 1.0)
    assert frame[150] == (2, 2.0, pytest.approx(1 + 1 + 2 + 2))  # service of the first call, then its tools
    assert frame[200] == (3, 0.5, pytest.approx(6 + 1 + 3 + 0.5))
    assert frame[9] == (1, None, 4.0)
    assert frame[10] == (1, None, 5.0)
    assert (trace.replay, trace.n_sessions, trace.duration_s) == ("closed", 2, 5.0)
    assert trace.frame.filter(trace.frame["prompt_tokens"] == 9)["session"].to_list() == [-1]


def test_token_ids_become_prefix_chains_over_prompt_and_output(tmp_path: Path) -> None:
    text = list(range(100, 150))
    records = [
        call(20, 13, input_tok_ids=text[:20], output_tok_ids=text[20:33], arrival_time_ns=0),
        call(40, 10, input_tok_ids=text[:40], output_tok_ids=[7] * 10, arrival_time_ns=1),
        call(16, 40, input_tok_ids=text[1:17], arrival_time_ns=2),  # other text; its output is unknown
        call(60, 4, arrival_time_ns=3),
    ]
    trace = read(tmp_path, records)
    first, second, third, fourth = (trace.chain(i).tolist() for i in range(4))
    assert [len(first), len(second), len(third), len(fourth)] == [2, 3, 1, 0]
    assert second[:2] == first
    assert third[0] not in second
    assert trace.prefix_block_tokens == 16
    assert "3 of 4 requests have ids" in " ".join(trace.provenance)
    assert [len(read(tmp_path, records, prefix_block_tokens=11).chain(i)) for i in range(4)] == [3, 4, 1, 0]


BAD = [
    ([LLMSERVINGSIM[0], {"input_toks": 4}], {}, 2, "arrival_time_ns", "to be present"),
    ([LLMSERVINGSIM[0] | {"input_toks": 0}], {}, 1, "input_toks", "from 1 to"),
    ([LLMSERVINGSIM[0] | {"output_toks": 0}], {}, 1, "output_toks", "zero_output=drop"),
    ([LLMSERVINGSIM[0] | {"input_tok_ids": [1, 2]}], {}, 1, "input_tok_ids", "40 token ids"),
    ([LLMSERVINGSIM[0] | {"sub_requests": []}], {}, 1, "sub_requests", "one or more calls"),
    ([LLMSERVINGSIM[0] | {"sub_requests": [call(1, 1), call(1, 1, 0)]}], {}, 1, "tool_duration_ns", "to be present"),
    (LLMSERVINGSIM[::-1], {}, 2, "arrival_time_ns", "sort=true"),
    (LLMSERVINGSIM, {"prefix_block_tokens": 16}, None, "trace.options.prefix_block_tokens", "token ids"),
    (LLMSERVINGSIM, {"prefix_block_tokens": 0}, None, "trace.options.prefix_block_tokens", "a whole number from 1"),
    (LLMSERVINGSIM_SESSIONS, {"zero_output": "drop"}, None, "trace.options.zero_output", "tear its session"),
]


@pytest.mark.parametrize(("records", "options", "row", "column", "expected"), BAD)
def test_bad_files_and_options(
    tmp_path: Path, records: list[dict[str, Any]], options: dict[str, Any], row: int | None, column: str, expected: str
) -> None:
    with pytest.raises(TraceError) as raised:
        load_trace(write(tmp_path, "w.jsonl", lines(records)), format="llmservingsim", **options)
    assert (raised.value.row, raised.value.column) == (row, column)
    assert expected in str(raised.value)


def test_sorted_lines_read_the_same(tmp_path: Path) -> None:
    shuffled = [LLMSERVINGSIM_SESSIONS[i] for i in (2, 0, 1)]
    assert read(tmp_path, shuffled, sort=True).sha256 == read(tmp_path, LLMSERVINGSIM_SESSIONS).sha256
