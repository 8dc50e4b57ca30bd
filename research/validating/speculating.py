"""Runs that were made with speculation, by what was published of their launches, and how one is served.

The table of runs does not say which speculated. InferenceX's configurations do (.github/configs/nvidia-master.yaml of
SemiAnalysisAI/InferenceX, its history to April 2026): some images, layouts and numbers of users are asked for with
``spec-decoding: mtp`` only. Where they are asked for with and without, a run counts as one without. ``db-dump``
campaigns hold none: no image or layout that only speculating configurations have is in them.

Acceptance was not published with the runs. The first draft is accepted 85 times of 100 (DeepSeek-V3, arXiv:2412.19437,
section 5.4.3: 85 to 90), the second 30 times, the third never (what aiconfigurator v0.4.0 and v0.5.0 put into their
examples, src/aiconfigurator/cli/example.yaml: ``nextn_accept_rates``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envs.hardware.profile import Profile
from envs.hardware.speculation import Acceptance
from envs.hardware.tables import StepTables, interpolate

RATES = (0.85, 0.3, 0.0)
"""Chance of each draft, given that those before it were accepted."""
CAPTURED = 512
"""Tokens up to which a law of experts is that of captured graphs; steps that verify are launched from one too."""


def acceptance_of(run: Mapping[str, Any]) -> Acceptance | None:
    """How many drafts a run's steps accept; None: it does not speculate, or it is not known to.

    Args:
        run: a measured run (columns of ``serving_runs``), its degrees counted once.
    """
    drafts = _drafts(run)
    return Acceptance(RATES[:drafts]) if drafts else None


def _drafts(run: Mapping[str, Any]) -> int:
    if str(run["campaign"]).startswith("db-dump") or run["layout"] != "colocated":
        return 0
    engine, model, version = str(run["engine"]), str(run["model"]), str(run["engine_version"] or "")
    tp, ranks, precision = int(run["tp"]), int(run["dp"] or 1), run["precision"]
    if engine == "trtllm" and "DeepSeek-R1" in model and version == "1.2.0rc6.post3":
        return 1 if ranks > 1 else 3  # dsr1_fp{4,8}_b200_trt_mtp.sh
    if engine == "sglang" and "DeepSeek-R1" in model and precision == "fp8" and tp == 8 and int(run["users"]) > 64:
        return 2  # dsr1_fp8_b200_mtp.sh
    if engine == "sglang" and "Qwen3.5" in model and precision == "fp8" and (tp, int(run["moe_ep"] or 1)) == (4, 1):
        return 3  # qwen3.5_fp8_b200_mtp.sh
    return 0


def steps_of(tokens: int, acceptance: Acceptance) -> int:
    """Steps that a request of so many output tokens takes, the one that prefill emits included."""
    return 1 + max(1, round((tokens - 1) / acceptance.tokens))


def verifying(profile: Profile, acceptance: Acceptance, layers: int) -> Profile:
    """The profile whose decode steps draft and verify, to be run for :func:`steps_of` steps a request.

    A decode pays the products of its drafts besides its own, and the drafting layer once for each draft, one of
    ``layers``; attention reads its cache once. Its tables alone change, and of them what only decodes pay.

    Args:
        profile: of plain steps, with tables.
        acceptance: of the drafts.
        layers: of the model.
    """
    tables, drafts = profile.tables, acceptance.drafts
    assert tables is not None
    d0_s: list[float] = []
    least = 0.0
    for n, d0, d1 in zip(tables.seqs, tables.d0_s, tables.d1_s, strict=True):
        plain_s = _captured_s(tables, n)
        more_s = _captured_s(tables, n * (1 + drafts)) - plain_s + drafts / layers * (plain_s + d0)
        least = max(least, d0 + more_s + n * d1)  # decodes may not take less time for being more
        d0_s.append(least - n * d1)
    return replace(profile, tables=replace(tables, d0_s=tuple(d0_s)))


def _captured_s(tables: StepTables, tokens: int) -> float:
    """W of a step from a captured graph: beyond the largest, as it rises over the last half of those."""
    if tokens <= CAPTURED:
        return interpolate(tables.tokens, tables.w_s, tokens)
    half, whole = (interpolate(tables.tokens, tables.w_s, at) for at in (CAPTURED // 2, CAPTURED))
    return whole + (whole - half) / (CAPTURED // 2) * (tokens - CAPTURED)
