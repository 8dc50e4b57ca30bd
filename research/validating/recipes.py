"""How the disaggregated runs of InferenceX were launched: degrees, limits and front ends, read from its recipes.

``recipes.csv`` holds a row a recipe without speculation (InferenceX's configuration file names it, NVIDIA/srt-slurm
holds it), facts only, with the file and the commit that it was read at:

* Degrees. The table of runs has them from the benchmark's metadata, which its makers have corrected since and which
  "do nothing" where a script sets them: a recipe's count.
* ``tokens`` and ``seqs``: most tokens and sequences of a step, of one data-parallel rank. TensorRT-LLM's limits are a
  rank's; SGLang divides ``chunked-prefill-size`` and ``max-running-requests`` by the ranks, and the least of chunk and
  ``max-prefill-tokens`` (16,384 by default) counts.
* ``kv_tokens``: SGLang's ``max-total-tokens`` of a rank, where it is set.
* ``deepep``: whether SGLang's tokens go to the experts by DeepEP (``moe-a2a-backend``).
* ``receive_steps``: SGLang's ``scheduler-recv-interval``: a scheduler that decodes looks for requests once in so many
  steps.
* ``random``: prefill ranks that SGLang chooses by the random number of a request's bootstrap room, its default; the
  recipes ask for turns elsewhere.
* ``frontends``: HTTP front ends behind one nginx (ten where a recipe says nothing), each of which sends its requests to
  the workers in turn (Dynamo's default), not knowing of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envs.hardware.sources.serving_runs import SAME_WEIGHTS

TABLE = Path(__file__).with_name("recipes.csv")
SOURCES = {
    "recipes/": "NVIDIA/srt-slurm, branch sa-submission-q2-2026 (those that were dropped: the commit before)",
    "recipies/": "NVIDIA/srt-slurm, which took over ai-dynamo/dynamo's slurm_jobs scripts that these runs name",
    "InferenceX": "SemiAnalysisAI/InferenceX, .github/configs/nvidia-master.yaml",
}
"""Where a recipe's path (or how it starts) is to be found."""


@dataclass(frozen=True, slots=True)
class Role:
    """Launch settings of the prefill or of the decode workers; limits are those of one data-parallel rank.

    Attributes:
        tp: GPUs that share attention heads.
        dp: ranks.
        ep: groups of GPUs among which the experts are dealt out.
        tokens: most tokens of a step, None: not set.
        seqs: most sequences, None: not set.
        kv_tokens: most KV tokens, None: what memory leaves.
        deepep: whether DeepEP brings tokens to the experts, None: not set.
        random: whether a request's rank is random; else ranks take turns.
        receive_steps: decode steps from one look for requests to the next.
    """

    tp: int
    dp: int
    ep: int
    tokens: int | None
    seqs: int | None
    kv_tokens: int | None
    deepep: bool | None = None
    random: bool = False
    receive_steps: int = 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a run was launched.

    Attributes:
        prefill: settings of the prefill workers.
        decode: of the decode workers.
        frontends: number of front ends that choose workers, each for itself.
        path: file of the recipe, see :data:`SOURCES`.
        commit: at which it was read.
    """

    prefill: Role
    decode: Role
    frontends: int
    path: str
    commit: str


def recipe_of(run: Mapping[str, Any]) -> Recipe | None:
    """The recipe of a measured run, None if none is known.

    A recipe fits by engine, version, model, GPU, precision, lengths, numbers of workers and GPUs; of several that one
    counts whose list of concurrencies has the run's. One alone counts whatever its list says: lists were changed
    without the settings.

    Args:
        run: a row of ``serving_runs``.
    """
    weights = SAME_WEIGHTS.get(str(run["model"]), str(run["model"]))
    key = (
        *(str(run[name] or "") for name in ("engine", "engine_version")),
        weights,
        *(str(run[name] or "") for name in ("gpu", "precision")),
        *(int(run[name] or 0) for name in ("prompt_tokens", "output_tokens", "prefill_workers", "decode_workers")),
        *(int(run[f"{phase}_tp"]) * int(run[f"{phase}_dp"] or 1) for phase in ("prefill", "decode")),
    )
    found = _recipes().get(key, [])
    named = [recipe for users, recipe in found if int(run["users"]) in users]
    if named:
        return named[0]
    return found[0][1] if len(found) == 1 else None


@cache
def _recipes() -> dict[tuple[Any, ...], list[tuple[frozenset[int], Recipe]]]:
    import csv

    table: dict[tuple[Any, ...], list[tuple[frozenset[int], Recipe]]] = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            roles = {phase: _role(row, phase) for phase in ("prefill", "decode")}
            key = (
                *(row[name] for name in ("engine", "version", "weights", "gpu", "precision")),
                *(int(row[n]) for n in ("prompt_tokens", "output_tokens", "prefill_workers", "decode_workers")),
                *(role.tp * role.dp for role in roles.values()),
            )
            recipe = Recipe(**roles, frontends=int(row["frontends"]), path=row["path"], commit=row["commit"])
            table.setdefault(key, []).append((frozenset(map(int, row["users"].split())), recipe))
    return table


def _role(row: Mapping[str, str], phase: str) -> Role:
    def number(name: str) -> int | None:
        text = row.get(f"{phase}_{name}", "")
        return int(text) if text else None

    return Role(
        tp=int(row[f"{phase}_tp"]),
        dp=int(row[f"{phase}_dp"]),
        ep=int(row[f"{phase}_ep"]),
        tokens=number("tokens"),
        seqs=number("seqs"),
        kv_tokens=number("kv_tokens"),
        deepep={"true": True, "false": False}.get(row[f"{phase}_deepep"]),
        random=row.get(f"{phase}_random") == "true",
        receive_steps=number("receive_steps") or 1,
    )
