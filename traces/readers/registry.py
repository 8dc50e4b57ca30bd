"""The formats that can be read. The ``FORMAT`` of a reader module says what it is called and how it is recognised."""

from __future__ import annotations

import importlib

from traces.errors import TraceError, nearest
from traces.readers.format import Format
from traces.readers.options import checked
from traces.readers.records import other_separator
from traces.source import Source
from traces.trace import Trace

MODULES = (
    "dynamo",
    "aiperf",
    "vllm_engine",
    "vllm_bench",
    "guidellm",
    "inference_perf",
    "azure",
    "servegen",
    "bailian",
    "llmservingsim",
    "vidur",
    "burstgpt",
    "mooncake_agentic",
    "mooncake",
    "agentic",
    "agentic_json",
    "gateway",
    "sharegpt",
    "canonical",
    "table",
)
"""Reader modules, in the order in which they are asked whether a file is theirs: the strictest first."""

FORMATS: dict[str, Format] = {
    form.name: form for form in (importlib.import_module(f"traces.readers.{name}").FORMAT for name in MODULES)
}


def get_format(name: str, file: str = "format") -> Format:
    """The format of that name; an unknown one is an error that suggests the nearest."""
    if not isinstance(name, str) or name not in FORMATS:
        expected = f"one of {', '.join(FORMATS)}{nearest(str(name), FORMATS)}"
        raise TraceError(file=file, column="trace.format", value=name, expected=expected)
    return FORMATS[name]


def guess_format(source: Source) -> Format:
    """The first format that recognises the input."""
    for candidate in FORMATS.values():
        if candidate.recognises(source):
            return candidate
    first = source.head.lstrip().split(b"\n", 1)[0]
    if first[:1] not in b"{[" and b"\0" not in first and (separator := other_separator(first)):
        value = f"a first line whose fields are separated by {separator}"
        raise source.error("comma-separated values, or another known format", value=value)
    raise source.error(
        f"a known format; say which with trace.format=, one of {', '.join(FORMATS)}", value=source.head[:40]
    )


def read_with(source: Source, form: Format, options: dict[str, object]) -> Trace:
    """Read with options checked by name, type and range (:mod:`traces.readers.options`)."""
    for option in options:
        if option not in form.options:
            expected = f"an option of format {form.name} ({', '.join(form.options)}){nearest(option, form.options)}"
            raise source.error(expected, column=f"trace.options.{option}", value=options[option])
    return form.read(source, **checked(source, form.read, options))
