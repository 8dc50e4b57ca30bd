"""Names of traces: where they come from, what is odd about them, how they are split; and ``load_trace``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from traces.errors import TraceError, nearest
from traces.readers.registry import get_format, guess_format, read_with
from traces.source import read_source
from traces.trace import Trace

ZONES = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Entry:
    """One public trace.

    Attributes:
        name: catalogue name.
        format: reader.
        files: paths below the data folder (or the package, for shipped traces), the first that exists is read.
        source: repository, path and commit.
        licence: licence of the data.
        citation: what to cite.
        sha256: of file names: hashes of bytes that were read; any other bytes load as ``unverified``.
        oddities: what to know before use.
        cuts_s: end of train, of validation and of test, seconds from the first request. Fixed: first 40 %, next
            20 %, last 40 % of the file named first in ``sha256``. None: 40/20/40 of whatever is read.
        options: reader options that this trace needs.
        shipped: lies in the package, not in the data folder.
    """

    name: str
    format: str
    files: tuple[str, ...]
    source: str
    licence: str
    citation: str
    sha256: Mapping[str, str]
    oddities: tuple[str, ...]
    cuts_s: tuple[float, float, float] | None
    options: Mapping[str, object] = field(default_factory=dict)
    shipped: bool = False


def _endings(path: str) -> tuple[str, ...]:
    return (path, f"{path}.gz", f"{path}.zst")


_AZURE = "Azure/AzurePublicDataset : data/{file} @ b469a113cedca53ddc3bdea71a143dc4b7d8700c"
_MOONCAKE = "kvcache-ai/Mooncake : FAST25-release/traces/{file} @ 3b5a594133958449a1feaf1c9e0fc1b553e34a28"
_FAST25 = "Qin et al., Mooncake: Trading More Storage for Less Computation, FAST 2025"
_SPLITWISE = "Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, ISCA 2024"

ENTRIES: dict[str, Entry] = {
    e.name: e
    for e in (
        Entry(
            name="default",
            format="pdgym",
            files=("data/default.parquet",),
            source="traces/default.py of this project, from the numbers in traces/data/default_fit.yaml",
            licence="Apache-2.0",
            citation="fitted on Azure conversation 2023 (Splitwise, ISCA 2024) and Mooncake conversation (FAST 2025)",
            sha256={},
            oddities=(
                "synthetic; closed loop",
                "think times are a tenth of their source's, and the rate has no slow swings",
            ),
            cuts_s=None,
            shipped=True,
        ),
        Entry(
            name="azure_conv",
            format="azure",
            files=(
                "traces/azure2023/AzureLLMInferenceTrace_conv.first2400s.csv.gz",
                *_endings("traces/azure2023/AzureLLMInferenceTrace_conv.csv"),
            ),
            source=_AZURE.format(file="AzureLLMInferenceTrace_conv.csv"),
            licence="CC-BY-4.0",
            citation=_SPLITWISE,
            sha256={
                "AzureLLMInferenceTrace_conv.first2400s.csv.gz": (
                    "f13d7d5060a403779784cf4f0091ae15a293414280650f1675388a846a70ddc8"
                )
            },
            oddities=("local date-times with 100 ns digits", "no sessions, no prefix information"),
            cuts_s=(960.0, 1440.0, 2400.0),
        ),
        Entry(
            name="azure_code",
            format="azure",
            files=(
                "traces/azure2023/AzureLLMInferenceTrace_code.first2400s.csv.gz",
                *_endings("traces/azure2023/AzureLLMInferenceTrace_code.csv"),
            ),
            source=_AZURE.format(file="AzureLLMInferenceTrace_code.csv"),
            licence="CC-BY-4.0",
            citation=_SPLITWISE,
            sha256={
                "AzureLLMInferenceTrace_code.first2400s.csv.gz": (
                    "9baaa507e43aba2105e9656072b9d1ec8fd5f1f5a81ffb7368a89452499cd636"
                )
            },
            oddities=("on/off bursts: inter-arrival CV about 13", "no sessions, no prefix information"),
            cuts_s=(960.0, 1440.0, 2400.0),
        ),
        Entry(
            name="mooncake_conversation",
            format="mooncake",
            files=(
                "traces/mooncake/conversation_trace.first2700s.jsonl.gz",
                *_endings("traces/mooncake/conversation_trace.jsonl"),
            ),
            source=_MOONCAKE.format(file="conversation_trace.jsonl"),
            licence="Apache-2.0",
            citation=_FAST25,
            sha256={
                "conversation_trace.first2700s.jsonl.gz": (
                    "f7b45390352db0cf9270f5ba388dbc9cddbcef474088f3f6f82d17055e2f269e"
                )
            },
            oddities=(
                "stamps are 3-second buckets: arrivals are spread inside them by a seed",
                "no session ids: sessions are inferred from prefix chains",
                "no end stamps: think times assume a service time",
                "the first prefix block is shared by every request",
            ),
            cuts_s=(1080.0, 1620.0, 2703.0),
        ),
        Entry(
            name="mooncake_synthetic",
            format="mooncake",
            files=_endings("traces/mooncake/synthetic_trace.jsonl"),
            source=_MOONCAKE.format(file="synthetic_trace.jsonl"),
            licence="Apache-2.0",
            citation=_FAST25,
            sha256={},
            oddities=("synthesised by its authors from public data sets", "no session ids, no end stamps"),
            cuts_s=None,
        ),
        Entry(
            name="agentic",
            format="agentic",
            files=("traces/agentic_cc/requests.derived.parquet",),
            source=(
                "callanjfox/kv-cache-tester : traces/trace_*.json @ 94f6046dfd9c0c8bc0cdb24a5aa6579bac8669bf, "
                "as one row a request"
            ),
            licence="Apache-2.0",
            citation="callanjfox/kv-cache-tester",
            sha256={"requests.derived.parquet": "c889b06c77de14b9b47cf975f1a2e8414338f34d854bbdb4e0e92a139bf7900a"},
            oddities=(
                "closed loop; session starts are not recorded and are drawn here",
                "contexts of 100k tokens at the median, up to 894k: see max_context_tokens",
                "think times up to hours: see max_think_s",
                "near-duplicate sessions, of which the first of each family is read",
                "20 requests without output count as one token",
                "block ids are local to a session: sharing between sessions is lost",
            ),
            cuts_s=None,
            options={"zero_output": "one"},
        ),
    )
}


def names() -> list[str]:
    """Names that :func:`load_trace` knows."""
    return list(ENTRIES)


def default_data_dir() -> Path:
    """``$PDGYM_DATA``, else the folder ``data`` in the user's cache folder for pdgym."""
    given = os.environ.get("PDGYM_DATA")
    if given:
        return Path(given).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("pdgym")) / "data"


def load_trace(
    name: str | Path, format: str | None = None, data_dir: str | Path | None = None, **options: object
) -> Trace:
    """Load a catalogue trace by name, or a file by path.

    Args:
        name: a catalogue name (:func:`names`), or the path of a file.
        format: reader of a file (``azure``, ...); None recognises it by its first bytes.
        data_dir: data folder; None takes :func:`default_data_dir`.
        **options: options of the reader, for example ``sort=True``.

    Raises:
        TraceError: an unknown name, format or option (names the nearest), absent data (says where it was
            looked for and how to get it), or bad data (names file, row, column, value).
    """
    text = str(name)
    if text in ENTRIES:
        if format is not None and format != ENTRIES[text].format:
            raise TraceError(file=text, column="format", value=format, expected=f"{ENTRIES[text].format}, or none")
        return _load_entry(ENTRIES[text], data_dir, options)
    if isinstance(name, str) and os.sep not in text and "." not in text and not Path(text).exists():
        raise TraceError(
            file=text,
            expected=f"a path, or a trace name: {', '.join(ENTRIES)}{nearest(text, ENTRIES)}",
        )
    form = get_format(format, text) if format is not None else None
    source = read_source(name)
    return read_with(source, form or guess_format(source), dict(options))


def find_file(entry: Entry, data_dir: str | Path | None = None) -> Path:
    """The file of a catalogue trace; an error that says how to get it if it is absent."""
    folder = Path(__file__).parent if entry.shipped else Path(data_dir) if data_dir else default_data_dir()
    for file in entry.files:
        if (folder / file).exists():
            return folder / file
    how = f"get {entry.source} (licence {entry.licence}) and put it there"
    if entry.shipped:
        how = "make it again with: python -m research.traces action=default"
    setting = "" if entry.shipped else "; the folder is set by data_dir or $PDGYM_DATA"
    raise TraceError(file=entry.name, expected=f"one of {', '.join(entry.files)} in {folder}: {how}{setting}")


def _load_entry(entry: Entry, data_dir: str | Path | None, options: Mapping[str, object]) -> Trace:
    source = read_source(find_file(entry, data_dir))
    trace = read_with(source, get_format(entry.format), {**entry.options, **options})
    if entry.shipped:
        return trace.named(entry.name)
    known = entry.sha256.get(source.path.name)
    state = "verified" if known == source.sha256 else "unverified: not the bytes the catalogue knows"
    return trace.named(entry.name, f"{entry.source}; {entry.licence}; {state}")


def zones(trace: Trace) -> dict[str, Trace]:
    """``train``, ``validation`` and ``test`` of a trace: a catalogue trace at its fixed cuts, else 40/20/40 %.

    No session crosses a cut. The cuts are fixed in seconds, so more data at hand moves none of them.

    Raises:
        TraceError: too few requests: a zone without one.
    """
    entry = ENTRIES.get(trace.name)
    try:
        if entry is None or entry.cuts_s is None:
            return trace.split()
        start, parts = 0.0, {}
        for zone, end in zip(ZONES, entry.cuts_s, strict=True):
            parts[zone] = trace.window(start, min(end, trace.duration_s) if zone == "test" else end)
            start = end
        return parts
    except TraceError as error:
        expected = (
            "in each of train, validation and test a request of its own or the start of a session: "
            "too few to cut into zones"
        )
        found = f"{len(trace)} request{'s' * (len(trace) != 1)} in {trace.duration_s:g} s"
        raise TraceError(file=trace.name, value=found, expected=expected) from error
