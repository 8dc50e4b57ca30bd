"""A profile for any engine, GPU and tensor-parallel degree with op tables at hand; fitted to nothing that it predicts.

``profile_for("llama-3.1-70b", "b200_sxm", "trtllm", None, 8, "nvfp4", "fp8", data_dir)`` composes steps as the engine
serves them (:mod:`envs.hardware.sources.compose`), makes the table law of them, adds the host's time between steps
where it was measured, and fits the plane that policies predict with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from envs.hardware.errors import MeasurementError, ProfileError
from envs.hardware.fit import Errors, StepFit, fit_step_law
from envs.hardware.gpu import Gpu, load_gpu
from envs.hardware.model_shape import ModelShape, activation_reserve_bytes, kv_law, load_model
from envs.hardware.profile import KvLaw, Profile
from envs.hardware.records import fit_record, origin_record, tables_doubt, tables_errors
from envs.hardware.sources import engine_memory
from envs.hardware.sources.compose import Composer
from envs.hardware.sources.grids import compose_steps
from envs.hardware.sources.host_time import host_law
from envs.hardware.sources.op_tables import AICONFIGURATOR, OpTables, check_engine, has_tables, load_op_tables
from envs.hardware.sources.plausible import check_ops
from envs.hardware.sources.sampling import GREEDY
from envs.hardware.sources.table_law import compose_tables, misfit
from envs.hardware.steps import check_plausible
from envs.hardware.tables import StepTables

MAX_TOKENS, MAX_SEQS = 16384, 512
LOGIT_SEQS, BATCHED_TOKENS = 256, 8192
"""What the reserve beside weights and cache is sized for."""
EXPERT_UTILISATION = 0.9
"""Share of the memory of a GPU that holds experts, whatever the engine."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Both laws of one configuration and how far they are from the composed steps, in percent by region."""

    fit: StepFit
    tables: StepTables
    errors: dict[str, Errors]
    ops: OpTables


def profile_for(
    model: str,
    gpu: str,
    engine: str,
    version: str | None,
    tensor_parallel: int,
    precision: str,
    kv_precision: str,
    data_dir: Path,
    utilisation: float | None = None,
    attention_dp: int = 1,
    expert_parallel: int = 1,
    sampling: str = GREEDY,
) -> Profile:
    """The profile of one configuration; made once, then remembered.

    Args:
        model: a model's name (its own or a published one) or file.
        gpu: a GPU's name, the folder of its op tables, or a file.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: the engine's version; the nearest measured one counts. None: not known, the newest.
        tensor_parallel: GPUs of a worker.
        precision: of the layers' matrices: ``bf16``, ``fp8`` (calibrated scales), ``fp8_dynamic`` (scales searched at
            every product), ``fp8_block`` or ``nvfp4``.
        kv_precision: of the cache: ``bf16`` or ``fp8``.
        data_dir: the data folder.
        utilisation: the engine's own setting of how much memory it may use (see
            :mod:`envs.hardware.sources.engine_memory`); None: its default.
        attention_dp: data-parallel ranks of a mixture-of-experts model; the profile is one rank's.
        expert_parallel: groups of GPUs that its experts are dealt out to.
        sampling: how requests have their tokens chosen, one of :data:`envs.hardware.sources.sampling.SAMPLING`; dense
            models only.

    Raises:
        ProfileError: a model, GPU or way of sampling that is not known, a model that does not fit, ranks of a dense
            model.
        MeasurementError: no op tables for it.
    """
    check_engine(engine)
    shape, sheet, home = load_model(model), load_gpu(gpu), data_dir.absolute()
    if shape.needs_experts:
        from envs.hardware.estimate_moe import expert_profile_for
        from envs.hardware.layout import Layout

        layout = Layout(tensor_parallel, attention_dp, expert_parallel)
        share = EXPERT_UTILISATION if utilisation is None else utilisation
        return expert_profile_for(model, gpu, engine, version, layout, precision, kv_precision, home, share)
    if (attention_dp, expert_parallel) != (1, 1):
        raise ProfileError(
            f"{shape.name}: attention_dp = {attention_dp}, expert_parallel = {expert_parallel}: expected 1 for a dense "
            f"model, whose ranks are workers of their own"
        )
    what = (engine, version, tensor_parallel, precision, kv_precision, home, utilisation, sampling)
    key = repr((shape, sheet, what))  # by content: a file of the user's own may change between two calls
    if key not in _made:
        _made[key] = _profile(shape, sheet, *what)
    return _made[key]


_made: dict[str, Profile] = {}


def _profile(
    shape: ModelShape,
    gpu: Gpu,
    engine: str,
    version: str | None,
    tensor_parallel: int,
    precision: str,
    kv_precision: str,
    data_dir: Path,
    utilisation: float | None,
    sampling: str,
) -> Profile:
    weights = shape.weight_bytes(precision) / tensor_parallel
    reserve = activation_reserve_bytes(shape, gpu, tensor_parallel, BATCHED_TOKENS, LOGIT_SEQS)
    share = engine_memory.utilisation(engine, gpu, tensor_parallel, weights, reserve, utilisation)
    kv = kv_law(shape, gpu, tensor_parallel, precision, kv_precision, share, BATCHED_TOKENS, LOGIT_SEQS)
    place = (shape, gpu, engine, version, tensor_parallel, precision, kv_precision, kv, data_dir)
    made = estimate(*place, sampling=sampling)
    return Profile(
        name=f"{shape.name}-{precision}-{gpu.name}-tp{tensor_parallel}-{engine}",
        model=shape.name,
        gpu=gpu.name,
        tensor_parallel=tensor_parallel,
        engine=engine,
        precision=precision,
        step=made.fit.law,
        kv=kv,
        source=_source(made, gpu, engine, version, data_dir),
        fit=fit_record(made.fit)
        | {
            "tables_errors_percent": tables_errors(made.errors),
            "tables_relative_sd": tables_doubt(made.errors, made.tables.h0_s),
        },
        engine_version=version or "",
        tables=made.tables,
    )


def estimate(
    shape: ModelShape,
    gpu: Gpu,
    engine: str,
    version: str | None,
    tensor_parallel: int,
    precision: str,
    kv_precision: str,
    kv: KvLaw,
    data_dir: Path,
    max_tokens: int = MAX_TOKENS,
    max_seqs: int = MAX_SEQS,
    sampling: str = GREEDY,
) -> Estimate:
    """Compose steps as served and make both laws of them.

    Args:
        shape: the model.
        gpu: the GPU.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: the engine's version, or None.
        tensor_parallel: GPUs of a worker.
        precision: of the layers' matrices.
        kv_precision: of the cache.
        data_dir: the data folder.
        kv: law of the cache, which bounds the decodes.
        max_tokens: most tokens of a step.
        max_seqs: most decodes of a step.
        sampling: how requests have their tokens chosen.

    Raises:
        MeasurementError: no op tables for it, or times that cannot be.
    """
    ops = _tables(data_dir, tables_folder(gpu, data_dir), engine, version)
    check_ops(ops, gpu)
    composer = Composer(ops, shape, gpu, tensor_parallel, precision, kv_precision, True, version, sampling)
    points = compose_steps(composer, max_tokens, max_seqs, kv.capacity_tokens)
    check_plausible(points, shape, gpu, tensor_parallel, precision, kv_precision, composer.launch_floor_s)
    tables = compose_tables(composer, max_tokens, max_seqs, kv.capacity_tokens, host_law(data_dir, engine, version))
    return Estimate(fit_step_law(points), tables, misfit(tables, points), ops)


def tables_folder(gpu: Gpu, data_dir: Path) -> str:
    """Folder of the GPU's op tables, or of the GPU that stands in.

    Raises:
        MeasurementError: neither is at hand.
    """
    for folder in (gpu.tables, gpu.stand_in):
        if folder and has_tables(data_dir, folder):
            return folder
    raise MeasurementError(
        f"{gpu.name}: no op tables in the data folder {data_dir}, nor in the package aiconfigurator-core: expected "
        f"measurements/aiconfigurator/data/{gpu.tables or 'FOLDER'} (key `tables` of the GPU's file)"
    )


@lru_cache(maxsize=32)
def _tables(data_dir: Path, folder: str, engine: str, version: str | None) -> OpTables:
    return load_op_tables(data_dir, folder, engine, version)


def _source(made: Estimate, gpu: Gpu, engine: str, version: str | None, data_dir: Path) -> dict[str, Any]:
    standing_in = made.ops.gpu != gpu.tables
    return {
        "kind": "estimated",
        **origin_record(AICONFIGURATOR),
        "method": "engine steps composed as served from op times (envs/hardware/sources), fitted to no run it predicts"
        + (f"; op times of {made.ops.gpu} stand in" if standing_in else ""),
        "tables": f"{made.ops.gpu}, {engine} {made.ops.version}",
        "host_time": host_law(data_dir, engine, version).source,
        "files": [{"path": path, "sha256": digest} for path, digest in made.ops.files()],
    }
