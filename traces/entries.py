"""The public traces: where each comes from, under which licence, what is odd about it, where it can be had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
        url: where ``action=fetch`` gets it, over HTTPS; None: it cannot be had by one download, or is shipped.
        saved_as: path below the data folder that the download becomes, one of ``files``.
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
    url: str | None = None
    saved_as: str | None = None
    shipped: bool = False


def _endings(path: str) -> tuple[str, ...]:
    return (path, f"{path}.gz", f"{path}.zst")


def _source(repository: str, commit: str, path: str) -> str:
    return f"{repository} : {path} @ {commit}"


def _raw(repository: str, commit: str, path: str) -> str:
    return f"https://raw.githubusercontent.com/{repository}/{commit}/{path}"


def _azure_2023(name: str, sha256: str, oddity: str) -> Entry:
    file = f"AzureLLMInferenceTrace_{name}.csv"
    place = ("Azure/AzurePublicDataset", "b469a113cedca53ddc3bdea71a143dc4b7d8700c", f"data/{file}")
    return Entry(
        name=f"azure_{name}",
        format="azure",
        files=(f"traces/azure2023/{file[:-4]}.first2400s.csv.gz", *_endings(f"traces/azure2023/{file}")),
        source=_source(*place),
        url=_raw(*place),
        saved_as=f"traces/azure2023/{file}",
        licence="CC-BY-4.0",
        citation="Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, ISCA 2024",
        sha256={f"{file[:-4]}.first2400s.csv.gz": sha256},
        oddities=(oddity, "local date-times with 100 ns digits", "no sessions, no prefix information"),
        cuts_s=(960.0, 1440.0, 2400.0),
    )


def _azure_2024(name: str) -> Entry:
    file = f"AzureLLMInferenceTrace_{name}_1week.csv"
    return Entry(
        name=f"azure_{name}_2024",
        format="azure",
        files=_endings(f"traces/azure2024/{file}"),
        source=f"Azure/AzurePublicDataset : AzureLLMInferenceDataset2024.md @ 04e28b8a, {file}",
        url=f"https://azurepublicdatasettraces.blob.core.windows.net/azurellminfererencetrace/{file}",
        saved_as=f"traces/azure2024/{file}",
        licence="CC-BY-4.0",
        citation="Stojkovic et al., DynamoLLM: Designing LLM Inference Clusters for Performance and Energy Efficiency, "
        "HPCA 2025",
        sha256={},
        oddities=(
            "a week of several services: tens of millions of rows",
            "no sessions, no prefix information",
            "never read by this project: its reader follows the published schema",
        ),
        cuts_s=None,
    )


def _mooncake(name: str, path: str, *oddities: str, **more: Any) -> Entry:
    file = path.rsplit("/", 1)[1]
    place = ("kvcache-ai/Mooncake", "3b5a594133958449a1feaf1c9e0fc1b553e34a28", path)
    return Entry(
        name=f"mooncake_{name}",
        format="mooncake",
        files=(*more.pop("part", ()), *_endings(f"traces/mooncake/{file}")),
        source=_source(*place),
        url=_raw(*place),
        saved_as=f"traces/mooncake/{file}",
        licence="Apache-2.0",
        citation="Qin et al., Mooncake: Trading More Storage for Less Computation, FAST 2025",
        oddities=(*oddities, "no session ids: inferred from prefix chains", "no end stamps: think times are assumed"),
        **{"sha256": {}, "cuts_s": None, **more},
    )


def _burstgpt(name: str, release: str, what: str) -> Entry:
    file = f"BurstGPT_{name}.csv"
    return Entry(
        name=f"burstgpt_{name}",
        format="burstgpt",
        files=_endings(f"traces/burstgpt/{file}"),
        source=f"HPMLL/BurstGPT : release {release}, {file}",
        url=f"https://github.com/HPMLL/BurstGPT/releases/download/{release}/{file}",
        saved_as=f"traces/burstgpt/{file}",
        licence="CC-BY-4.0",
        citation="Wang et al., BurstGPT: A Real-World Workload Dataset to Optimize LLM Serving Systems, KDD 2025",
        sha256={},
        oddities=(
            f"{what} of campus use of ChatGPT and GPT-4: under one request a second, so loads compress it much",
            "stamps of whole seconds",
            "failures have no output: left out here and counted",
            "no prefix information",
            "never read by this project: its reader follows the published schema",
        ),
        cuts_s=None,
        options={"zero_output": "drop"},
    )


def _bailian(name: str, what: str) -> Entry:
    file = f"qwen_{name}_blksz_16.jsonl"
    place = ("alibaba-edu/qwen-bailian-usagetraces-anon", "main", file)
    return Entry(
        name=f"bailian_{name.removeprefix('trace').lower()}",
        format="bailian",
        files=_endings(f"traces/bailian/{file}"),
        source=_source(*place),
        url=_raw(*place),
        saved_as=f"traces/bailian/{file}",
        licence="Apache-2.0",
        citation="Wang et al., KVCache Cache in the Wild: Characterizing and Optimizing KVCache Cache at a Large Cloud "
        "Provider, USENIX ATC 2025",
        sha256={},
        oddities=(
            what,
            "two hours of one serving instance",
            "no end stamps: think times are assumed",
            "never read by this project: its reader follows the published schema",
        ),
        cuts_s=None,
    )


def _servegen(category: str, model: str, sha256: str, *oddities: str) -> Entry:
    commit = "f891d1189eb32b3868dfc443800c4150548c282a"
    archive = f"traces/servegen/ServeGen-{commit}.tar.gz"
    return Entry(
        name=f"servegen_{model.replace('-', '_')}",
        format="servegen",
        files=(f"traces/servegen/{model}.tar.zst", f"{archive}/ServeGen-{commit}/data/{category}/{model}"),
        source=f"alibaba/ServeGen : data/{category}/{model} @ {commit}",
        url=f"https://codeload.github.com/alibaba/ServeGen/tar.gz/{commit}",
        saved_as=archive,
        licence="Apache-2.0",
        citation="Xiang et al., ServeGen: Workload Characterization and Generation of Large Language Model Serving in "
        "Production, arXiv 2505.09999",
        sha256={f"{model}.tar.zst": sha256},
        oddities=(
            *oddities,
            "rates and lengths of clients, not requests: the trace is drawn from them",
            "the busiest clients' length files are missing from the shared part: their share is reported",
        ),
        cuts_s=None,
    )


def _llmservingsim(name: str, file: str, sha256: str, what: str) -> Entry:
    place = ("casys-kaist/LLMServingSim", "5daddb21a545658d5150b535712d0494584b5278", f"workloads/{file}.jsonl")
    return Entry(
        name=f"llmservingsim_{name}",
        format="llmservingsim",
        files=(f"traces/llmservingsim/{file}.lengths.jsonl.gz", *_endings(f"traces/llmservingsim/{file}.jsonl")),
        source=_source(*place),
        url=_raw(*place),
        saved_as=f"traces/llmservingsim/{file}.jsonl",
        licence="MIT",
        citation="Cho et al., LLMServingSim: A HW/SW Co-Simulation Infrastructure for LLM Inference Serving at Scale, "
        "IISWC 2024",
        sha256={f"{file}.lengths.jsonl.gz": sha256},
        oddities=(what, "a few hundred requests: too short to conclude from", "no sessions, no prefix information"),
        cuts_s=None,
    )


_AGENTIC = "94f6046dfd9c0c8bc0cdb24a5aa6579bac8669bf"
_CONVERSATION_PART = "conversation_trace.first2700s.jsonl.gz"

_ALL = (
    Entry(
        name="default",
        format="pdgym",
        files=("data/default.parquet",),
        source="this project : traces/default.py, from the numbers in traces/data/default_fit.yaml",
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
    _azure_2023(
        "conv", "f13d7d5060a403779784cf4f0091ae15a293414280650f1675388a846a70ddc8", "an hour of chat: long outputs"
    ),
    _azure_2023(
        "code",
        "9baaa507e43aba2105e9656072b9d1ec8fd5f1f5a81ffb7368a89452499cd636",
        "on/off bursts: inter-arrival CV about 13",
    ),
    _azure_2024("conv"),
    _azure_2024("code"),
    _mooncake(
        "conversation",
        "FAST25-release/traces/conversation_trace.jsonl",
        "stamps are 3-second buckets: arrivals are spread inside them by a seed",
        "the first prefix block is shared by every request",
        part=(f"traces/mooncake/{_CONVERSATION_PART}",),
        sha256={_CONVERSATION_PART: "f7b45390352db0cf9270f5ba388dbc9cddbcef474088f3f6f82d17055e2f269e"},
        cuts_s=(1080.0, 1620.0, 2703.0),
    ),
    _mooncake(
        "toolagent",
        "FAST25-release/traces/toolagent_trace.jsonl",
        "tool and agent calls: long shared system prompts, short outputs",
        "never read by this project: one schema with the conversation trace",
    ),
    _mooncake(
        "synthetic", "FAST25-release/traces/synthetic_trace.jsonl", "synthesised by its authors from public data sets"
    ),
    _mooncake(
        "arxiv",
        "FAST25-release/arxiv-trace/mooncake_trace.jsonl",
        "the trace of the arXiv version, an hour",
        "never read by this project: one schema with the conversation trace",
    ),
    Entry(
        name="agentic",
        format="agentic",
        files=("traces/agentic_cc/requests.derived.parquet",),
        source=f"callanjfox/kv-cache-tester : traces/trace_*.json @ {_AGENTIC}, as one row a request",
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
    Entry(
        name="agentic_sessions",
        format="agentic_json",
        files=("traces/agentic_cc/traces.tar.zst", f"traces/agentic_cc/kv-cache-tester-{_AGENTIC}.tar.gz"),
        source=f"callanjfox/kv-cache-tester : traces/trace_*.json @ {_AGENTIC}",
        url=f"https://codeload.github.com/callanjfox/kv-cache-tester/tar.gz/{_AGENTIC}",
        saved_as=f"traces/agentic_cc/kv-cache-tester-{_AGENTIC}.tar.gz",
        licence="Apache-2.0",
        citation="callanjfox/kv-cache-tester",
        sha256={"traces.tar.zst": "1b43a4ff96218f82e39d6864ddc9cad029d6d8cdab6d1d6839b18250fe72e441"},
        oddities=(
            "the originals of agentic, with their block ids, which are local to a session",
            "closed loop; session starts are not recorded and are drawn here",
            "sub-agents, one of them five days after its session's start, begin like sessions: subagents=recorded "
            "keeps their times, which leave nothing that could be cut into zones",
            "exact copies of a session are left out: duplicates=keep reads them",
            "think times up to hours: see max_think_s",
        ),
        cuts_s=None,
        options={"zero_output": "one", "subagents": "drawn"},
    ),
    _burstgpt("1", "v1.1", "two months"),
    _burstgpt("2", "v1.1", "two more months"),
    _burstgpt("3", "v2.0", "months with session ids and service times"),
    _bailian("traceA", "to consumers: a chat service"),
    _bailian("traceB", "to businesses: calls of an API"),
    _bailian("coder", "a coding model"),
    _bailian("thinking", "a thinking model: its thoughts are output, but not in the next prompt"),
    _servegen("language", "m-small", "7e38b86ae303ddbe504da64c7c3f9e69d0336908ddd4c790a928d0af8db6d0f6", "chat"),
    _servegen("reason", "deepseek-r1", "bc2f63009e83d53f5237db79f518c25955ae8ee1e7f6ef4a550925e03b9ca249", "reasoning"),
    _servegen(
        "multimodal", "mm-image", "d14b371392615ed74bf13b72bd73d18577dca397621b676625ed298f0f1d333e", "text and images"
    ),
    _llmservingsim(
        "llama_8b",
        "sharegpt-llama-3.1-8b-300-sps10",
        "2341b1ddfdebdc8c2147aaee366f7029d8f956667562eb9574d79a6d5a1e8620",
        "ShareGPT lengths by the tokenizer of Llama 3.1, ten a second",
    ),
    _llmservingsim(
        "qwen3_30b_a3b",
        "sharegpt-qwen3-30b-a3b-300-sps10",
        "74fae93a3bf48295a8c6827d7227e06366d5645138495c87276b6915fc2be5b0",
        "ShareGPT lengths by the tokenizer of Qwen3, ten a second",
    ),
    _llmservingsim(
        "qwen3_32b",
        "sharegpt-qwen3-32b-300-sps10",
        "74fae93a3bf48295a8c6827d7227e06366d5645138495c87276b6915fc2be5b0",
        "the same bytes as llmservingsim_qwen3_30b_a3b",
    ),
    _llmservingsim(
        "mixed",
        "workload_me2_01_mixed",
        "9dcdea306bf8701ef6a2f983c3da438b802862cc05682124cfb870602b3ed2e3",
        "a synthetic mix of short and very long requests",
    ),
    Entry(
        name="vidur_arxiv",
        format="vidur",
        files=("traces/vidur/arxiv_summarization_lengths.csv.gz",),
        source="microsoft/vidur : data/processed_traces/arxiv_summarization_* @ 7d475133",
        licence="MIT",
        citation="Agrawal et al., Vidur: A Large-Scale Simulation Framework for LLM Inference, MLSys 2024",
        sha256={
            "arxiv_summarization_lengths.csv.gz": "54a8e6cca2e286a8c8a8ed2fc9b20d1af31ac7bd57b7621c422372dfb04037f5"
        },
        oddities=("lengths without times: a rate must be given", "no sessions, no prefix information"),
        cuts_s=None,
    ),
)

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _ALL}
