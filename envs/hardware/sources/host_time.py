"""Time of the host between steps: what real steps take beyond the ops that were profiled on the same GPU.

vLLM 0.19.0, from LLMServingSim's runs (RTX 4090 and RTX PRO 6000, Llama-3.1-8B): once the last prompt has its first
token, a run only decodes, and the request that got it takes exactly ``output - 1`` steps to its end. Which requests
decode, and over how many tokens, follows from the stamps. The host time is the one constant for which the profiled ops
make that many steps of that time; it is counted for each GPU, and the law takes their mean.

Whether it grows with the number of decodes is read from short stretches between two stamps, so short that the number of
steps in them is certain. It does not: the slope is negative on one GPU, and the other has too few such stretches.
(Decode attention is profiled at powers of two; between them a step errs by more than the host takes.) So ``h1`` is 0.

vLLM schedules one step ahead since 0.14.0; before, the host's work was not hidden behind the GPU's. Published of such a
version (vllm-project/vllm issue 10634, Llama-2-7B, 256 sequences): 5 to 6 ms between two decode steps, of which the
issue lays 2 to 3 ms to threads that wait for a lock of theirs, and 0.2 to 0.3 ms once a step is scheduled ahead.
Versions before 0.14.0 get the measured constant, and for each decode what is left of BEHIND_S at 256. It is one figure,
of a version a year older than those it is used for, which may be rid of the lock.

TensorRT-LLM schedules ahead too, and its GPU still waits 0.58 ms a step for the host, by traces of its PyTorch backend
(NVIDIA/TensorRT-LLM issue 13957: Llama-3.1-8B in FP8 on a B200, 64 sequences). One figure of one version, taken for
all. With the overlap scheduler off more is exposed; how much is published nowhere.

SGLang schedules ahead; no measurement with op times of the same GPU is at hand, so it gets 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.hardware.errors import MeasurementError
from envs.hardware.model_shape import load_model
from envs.hardware.sources.llmservingsim import ROOT, OpProfile, Requests, read_profile, read_requests
from envs.hardware.sources.table_law import HostLaw
from envs.hardware.sources.versions import at_least

RUNS = ("RTX4090", "RTXPRO6000")
MODEL = "meta-llama/Llama-3.1-8B"
AHEAD_FROM = "0.14.0"
"""First vLLM version that schedules one step ahead by default."""
BEHIND_S, BEHIND_SEQS = 5.5e-3, 256
"""Published time between two decode steps of a vLLM that does not, and the sequences it decoded."""
TRTLLM_IDLE_S = 0.58e-3
"""Published time that TensorRT-LLM's GPU waits for its host in a step."""
SURE_STEPS = 3
"""Stretches of at most so many steps: their number is certain if the host takes less than a sixth of a step."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Drain:
    """The end of a run, when it only decodes.

    Attributes:
        steps: steps from the first of its stamps to the end of the request that got its first token last.
        length_s: (n,) stretches between stamps up to that end.
        seqs: (n,) decoding requests in each.
        ops_s: (n,) profiled time of a step in each.
    """

    steps: int
    length_s: FloatArray
    seqs: FloatArray
    ops_s: FloatArray


@dataclass(frozen=True, slots=True)
class HostTime:
    """Measured host time.

    Attributes:
        h0_s: by GPU, the constant that makes the number of steps right.
        slope_s: by GPU, how it changes with a decode, in stretches whose number of steps is certain.
    """

    h0_s: dict[str, float]
    slope_s: dict[str, float]

    @property
    def interval_s(self) -> tuple[float, float]:
        """Smallest and largest constant: two machines, no more can be said."""
        return min(self.h0_s.values()), max(self.h0_s.values())

    def law(self) -> HostLaw:
        """Mean of the machines; no growth with decodes where it does not grow on all of them."""
        h1_s = max(0.0, min(self.slope_s.values()))
        low, high = self.interval_s
        gpus = " and ".join(self.h0_s)
        return HostLaw(
            float(f"{np.mean(list(self.h0_s.values())):.3g}"),
            float(f"{h1_s:.3g}"),
            f"vLLM 0.19.0 on {gpus}: {low * 1e3:.2f} to {high * 1e3:.2f} ms a step beyond profiled ops",
        )


def measure_host_time(data_dir: Path) -> HostTime:
    """Host time of vLLM on the GPUs of RUNS.

    Raises:
        MeasurementError: missing or impossible measurements, or a run whose steps are faster than its ops.
    """
    layers = load_model("llama-3.1-8b").layers
    h0_s, slope_s = {}, {}
    for gpu in RUNS:
        drain = drain_of(read_requests(data_dir, gpu, MODEL), read_profile(data_dir, gpu, MODEL), layers)
        h0_s[gpu] = constant_s(drain)
        slope_s[gpu] = _slope_s(drain, h0_s[gpu])
    return HostTime(h0_s, slope_s)


def drain_of(requests: Requests, profile: OpProfile, layers: int) -> Drain:
    """The decodes after the last first token of a run.

    Raises:
        MeasurementError: the request that got its first token last has no decodes.
    """
    start = float(requests.first_s.max())
    # Of several that got it in the same step, the one that decodes longest.
    last = int(np.where(requests.first_s == start, requests.last_s, -np.inf).argmax())
    end, steps = float(requests.last_s[last]), int(requests.output[last]) - 1
    if steps < 1 or end <= start:
        raise MeasurementError(f"{requests.relative}: the request that starts last decodes nothing: expected a decode")
    stamps = np.unique(np.concatenate([[start], requests.last_s[(requests.last_s > start) & (requests.last_s <= end)]]))
    length, seqs, ops = [], [], []
    for left, right in pairwise(stamps):
        running = requests.last_s >= right
        middle = (left + right) / 2
        span = np.maximum(requests.last_s - requests.first_s, 1e-9)
        made = requests.output * (middle - requests.first_s) / span
        batch = int(running.sum())
        length.append(right - left)
        seqs.append(batch)
        ops.append(profile.decode_s(batch, float((requests.prompt + made)[running].sum()), layers))
    return Drain(steps, np.array(length), np.array(seqs, dtype=np.float64), np.array(ops))


def constant_s(drain: Drain) -> float:
    """The host time a step, for which the stretches hold as many steps as were made.

    Raises:
        MeasurementError: the profiled ops alone take longer than the run.
    """

    def steps(host_s: float) -> float:
        return float((drain.length_s / (drain.ops_s + host_s)).sum())

    low, high = 0.0, float(drain.length_s.sum()) / drain.steps
    if steps(low) < drain.steps:
        raise MeasurementError(
            f"{drain.steps} steps in {drain.length_s.sum():.3f} s: expected more than the profiled ops take "
            f"({drain.length_s.sum() / steps(low) * 1e3:.2f} ms a step); are they of another GPU?"
        )
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if steps(middle) > drain.steps else (low, middle)
    return low


def _slope_s(drain: Drain, host_s: float) -> float:
    """Change of the host time with a decode, over the stretches of few steps."""
    count = np.maximum(1.0, np.round(drain.length_s / (drain.ops_s + host_s)))
    sure = count <= SURE_STEPS
    rest = drain.length_s / count - drain.ops_s
    if len(np.unique(drain.seqs[sure])) < 3:
        return 0.0
    return float(np.polyfit(drain.seqs[sure], rest[sure], 1, w=np.sqrt(count[sure]))[0])


def host_law(data_dir: Path, engine: str, version: str | None = None) -> HostLaw:
    """Host time of an engine, as far as it was measured independently of serving runs; else 0, and said so.

    Args:
        data_dir: the data folder.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: the engine's version; None: not known, taken as the newest.
    """
    law = _measured_law(data_dir, engine)
    if engine != "vllm" or law.h0_s == 0.0 or at_least(version, AHEAD_FROM):
        return law
    h1_s = float(f"{(BEHIND_S - law.h0_s) / BEHIND_SEQS:.3g}")
    published = f"vllm issue 10634: {BEHIND_S * 1e3:g} ms at {BEHIND_SEQS} sequences where no step is scheduled ahead"
    return replace(law, h1_s=h1_s, source=f"{law.source}; {published}")


@cache
def _measured_law(data_dir: Path, engine: str) -> HostLaw:
    if engine == "trtllm":
        return HostLaw(
            TRTLLM_IDLE_S, source=f"TensorRT-LLM issue 13957: the GPU idles {TRTLLM_IDLE_S * 1e3:g} ms a step"
        )
    if engine != "vllm":
        return HostLaw()
    if not (data_dir / ROOT).is_dir():
        return HostLaw(source=f"{ROOT} is not in the data folder: 0")
    return measure_host_time(data_dir).law()
