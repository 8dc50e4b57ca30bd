"""Traces of LLM requests: a file in, a :class:`Trace` out. Knows nothing of clusters or policies."""

from __future__ import annotations

from traces.catalog import load_trace
from traces.errors import TraceError
from traces.trace import Trace

__all__ = ["Trace", "TraceError", "load_trace"]
