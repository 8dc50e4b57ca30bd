"""The profile of a group of data-parallel ranks as launched: who brings tokens to experts, and how full the group is.

A profile's law holds while all ranks of a group carry as many tokens (``envs.hardware.sources.compose_moe``). Prompts
come one by one, so that often a few ranks compute and the others wait: attention and dense layers take as long, but the
experts get the tokens of those few only. SGLang packs prompts of all ranks (``DpPaddingMode.SUM_LEN`` for prefill),
TensorRT-LLM pads them on consumer GPUs only (``use_dp_padding``); vLLM sends each rank's own. How full the groups
are follows from the simulation itself, see :func:`busy_share`.

Experts behind DeepEP were measured at few expert-parallel degrees. Others are taken between these, by logarithms, at as
many tokens a GPU, and not from experts without it, which run other kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

from envs.hardware.errors import MeasurementError
from envs.hardware.profile import Profile
from envs.hardware.sources.compose_moe import ExpertComposer
from envs.hardware.sources.moe_tables import BEHIND_DEEPEP, ExpertTables
from research.validating.profiles import Instance, NoProfileError, engine_profile

PARTS = 16
"""A share is rounded to so many parts, so that runs share their profiles."""
GATHERED = ("all_gather", "reduce_scatter")
"""Collectives over the tokens of all ranks."""


@dataclass(slots=True)
class SharedTables(ExpertTables):
    """Op tables in whose expert layers only a share of the ranks has tokens."""

    share: float = 1.0

    def experts_s(
        self,
        tokens: int,
        precision: str,
        tensor_parallel: int,
        expert_parallel: int,
        distribution: str,
        behind_deepep: bool = False,
    ) -> float:
        """Time over the tokens of the ranks that have any."""
        held = max(1, round(tokens * self.share))
        return ExpertTables.experts_s(
            self, held, precision, tensor_parallel, expert_parallel, distribution, behind_deepep
        )  # fmt: skip

    def _behind_deepep_s(self, tokens: int, precision: str, point: dict[str, object]) -> float:
        """As measured; between the nearest degrees that were, with as many tokens a GPU, where this one was not."""
        found = ExpertTables._behind_deepep_s(self, tokens, precision, point)
        wanted = int(str(point["moe_ep_size"]))
        if found or wanted == 1:
            return found
        degrees = {int(n) for name in BEHIND_DEEPEP if name in self.tables for n in self._degrees(name)}
        times_s: dict[int, float] = {}
        for side in (
            sorted((n for n in degrees if n < wanted), reverse=True),
            sorted(n for n in degrees if n > wanted),
        ):
            for degree in side:
                held = max(1, round(tokens * degree / wanted))
                time_s = ExpertTables._behind_deepep_s(self, held, precision, point | {"moe_ep_size": degree})
                if time_s:
                    times_s[degree] = time_s
                    break
        if not times_s:
            return 0.0
        ends = sorted(times_s)
        logs = np.log([times_s[degree] for degree in ends])
        return float(np.exp(np.interp(np.log(wanted), np.log(ends), logs)))

    def _degrees(self, name: str) -> list[int]:
        return self.tables[name].frame["moe_ep_size"].unique().to_list()

    def collective_s(self, op: str, elements: float, gpus: int, domain_gpus: int) -> float:
        """Time of a collective; what gathers all tokens has fewer."""
        held = elements * self.share if op in GATHERED else elements
        return ExpertTables.collective_s(self, op, held, gpus, domain_gpus)


@dataclass(frozen=True, slots=True)
class LaunchedComposer(ExpertComposer):
    """A composer that is told whether DeepEP moves the tokens."""

    with_deepep: bool = False

    @property
    def _deepep(self) -> bool:
        return self.with_deepep


@cache
def launched_profile(instance: Instance, data_dir: Path, deepep: bool | None = None, share: float = 1.0) -> Profile:
    """The profile of one rank.

    Args:
        instance: the engine instance.
        data_dir: the data folder.
        deepep: whether DeepEP moves tokens to experts; None: not known, the composer's own guess.
        share: of the ranks that have tokens in a step.

    Raises:
        NoProfileError: nothing to make it from.
    """
    whole = engine_profile(instance, data_dir)
    one = instance.data_parallel == 1 or instance.dense
    if one or (deepep is None and share >= 1.0):
        return whole
    from envs.hardware.estimate import MAX_SEQS, MAX_TOKENS, tables_folder
    from envs.hardware.gpu import load_gpu
    from envs.hardware.layout import Layout
    from envs.hardware.model_shape import load_model
    from envs.hardware.sources.host_time import host_law
    from envs.hardware.sources.moe_tables import load_expert_tables
    from envs.hardware.sources.table_law import compose_tables

    shape, gpu, version = load_model(instance.model), load_gpu(instance.gpu), instance.engine_version or None
    folder = tables_folder(gpu, data_dir)
    ops = load_expert_tables(data_dir, folder, instance.engine, version, shape, instance.precision)
    shared = SharedTables(**{f.name: getattr(ops, f.name) for f in fields(ops) if f.init}, share=share)
    layout = Layout(instance.tensor_parallel, instance.data_parallel, instance.expert_parallel)
    place = (shared, shape, gpu, layout.tensor_parallel, instance.precision, instance.kv_precision, True, version)
    composer = ExpertComposer(*place, layout=layout)
    if deepep is not None:
        composer = LaunchedComposer(*place, layout=layout, with_deepep=deepep)
    host = host_law(data_dir, instance.engine, version)
    try:
        tables = compose_tables(composer, MAX_TOKENS, MAX_SEQS, whole.kv.capacity_tokens, host)
    except MeasurementError as error:
        raise NoProfileError(str(error)) from error
    return replace(whole, tables=tables)


def busy_share(workers: pl.DataFrame, ranks: Iterable[int], least: float) -> float:
    """Share of the ranks that computed, over the time of their groups' steps; rounded, at least ``least``.

    Args:
        workers: ``SimResult.workers``.
        ranks: of the prefill workers.
        least: one rank's share.
    """
    frame = workers[list(ranks)]
    busy, idle = float(frame["prefill_s"].sum()), float(frame["idle_rank_s"].sum())
    share = busy / (busy + idle) if busy > 0.0 else 1.0
    return max(least, round(share * PARTS) / PARTS)
