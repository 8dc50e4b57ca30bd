"""How measured runs were driven: rounds, lengths, start. An input of validation, with its source, never a fit.

What the load generator does moves mean TTFT by tens of per cent. Where it was published, it is used as published;
where it was not, every plausible number of rounds is run: the middle one is scored, the others are its uncertainty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from envs.hardware.sources.recorded_layout import DUMPS
from traces import Trace
from traces.clients import client_trace


@dataclass(frozen=True, slots=True)
class Protocol:
    """A load generator: closed-loop users that all start at once.

    Attributes:
        name: short name.
        rounds: requests of each user; several where it is not known, in rising order.
        shortest: lengths are drawn evenly from ``[shortest, 1]`` times the nominal one; 1: all are nominal.
        warm: whether requests were served before those that count, so that connections exist.
        source: where this is written, or that it is written nowhere.
    """

    name: str
    rounds: tuple[int, ...]
    shortest: float
    warm: bool
    source: str

    def mean_tokens(self, nominal: int) -> int:
        """Mean length of a request of this nominal length."""
        return max(1, round(nominal * (1.0 + self.shortest) / 2.0))

    def trace(self, users: int, rounds: int, prompt_tokens: int, output_tokens: int, seed: int = 0) -> Trace:
        """The requests, as the simulator replays clients; lengths are nominal ones.

        The generator hands the next prompt to whichever client is free; here each user has its own ``rounds``
        requests, so the last ones overlap a little less.
        """
        jitter = (1.0 - self.shortest) / (1.0 + self.shortest)
        prompt, output = self.mean_tokens(prompt_tokens), self.mean_tokens(output_tokens)
        return client_trace(users, rounds, prompt, output, jitter, "together", seed)


INFERENCEX = Protocol(
    "inferencex",
    rounds=(10,),
    shortest=0.8,
    warm=True,
    source=(
        "SemiAnalysisAI/InferenceX benchmarks/*.sh: benchmark_serving.py --num-prompts CONC*10 --max-concurrency CONC "
        "--request-rate inf --random-range-ratio 0.8 --ignore-eos; lengths np.random.randint(int(L*0.8), L + 1)"
    ),
)
AICONFIGURATOR = Protocol(
    "aiconfigurator",
    rounds=(5, 10, 20),
    shortest=1.0,
    warm=True,
    source=(
        "ai-dynamo/aiconfigurator v0.2.0 to v0.5.0, src/aiconfigurator/eval/benchmarks/genai_perf_runner.py: "
        "--request-count 10*CONC --warmup-request-count 2*CONC, standard deviations of both lengths 0, ignore_eos; "
        "from v0.6.0 on its bench_run.sh asks for 20*CONC. That the runs used it is not said with them: 5 and 20 "
        "rounds are run as well"
    ),
)
UNKNOWN = Protocol(
    "unknown",
    rounds=(3, 5, 10),
    shortest=1.0,
    warm=True,
    source="not published with the runs: fixed lengths assumed, 3, 5 and 10 rounds run",
)
PROTOCOLS = (INFERENCEX, AICONFIGURATOR, UNKNOWN)

_AICONFIGURATOR = re.compile(r"(^|/)data/[^/]+/(vllm|sglang|trtllm)/[^/]+/[^/]+\.csv$")
"""Campaigns filed as ``data/<GPU>/<engine>/<version>/<model>.csv``, the order of aiconfigurator's own data."""


def protocol_of(campaign: str) -> Protocol:
    """The protocol of a campaign (column ``campaign`` of the measured runs)."""
    if re.match(DUMPS, campaign):
        return INFERENCEX
    return AICONFIGURATOR if _AICONFIGURATOR.search(campaign) else UNKNOWN
