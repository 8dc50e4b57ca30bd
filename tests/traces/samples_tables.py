"""Small valid tables, made by hand: plain, with quotes, a cluster's log, and prefix hashes in a Parquet."""

from __future__ import annotations

import io
import json

import polars as pl

from tests.traces.samples import TABLE

QUOTED = b'\xef\xbb\xbf"arrival_ms",prompt_tokens,output_tokens,note\r\n0,10,5,"a ""b""\r\n c"\r\n40,10,5,\r\n\r\n'

CLUSTER = b"""arrival_s,prompt_tokens,output_tokens,session,end_s,prefill_worker,decode_worker,ttft_ms,tpot_ms,status
1700000000.5,100,10,a,1700000001.5,pod-2,pod-10,200,20,ok
1700000002,200,20,b,,pod-10,pod-2,300,,failed
1700000004,150,30,a,1700000005,pod-2,pod-9,250,25,ok
"""


def hashed() -> bytes:
    frame = pl.DataFrame(
        {
            "arrival_s": [0.0, 1.0, 2.0],
            "prompt_tokens": [40, 32, 64],
            "output_tokens": [10, 5, 8],
            "session": ["a", "b", "a"],
            "hash_ids": [[7, 9, 100], None, [7, 9, 30, 31]],
        }
    )
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata={"pdgym.hash": json.dumps({"version": 1, "block_tokens": 16})})
    return buffer.getvalue()


VALID = {"table": [TABLE.encode(), QUOTED, CLUSTER, hashed()]}
