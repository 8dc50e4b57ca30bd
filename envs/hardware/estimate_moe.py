"""Profiles of mixture-of-experts models, and of any with latent or windowed attention; fitted to nothing they predict.

``expert_profile_for("deepseek-v3", "b200_sxm", "trtllm", None, Layout(1, 8, 8), "nvfp4", "fp8", data_dir)`` is one of
eight data-parallel ranks: its step times hold while the others carry as many tokens as it does.
"""

from __future__ import annotations

from pathlib import Path

from envs.hardware.estimate import EXPERT_UTILISATION, MAX_SEQS, MAX_TOKENS, tables_folder
from envs.hardware.fit import fit_step_law
from envs.hardware.gpu import Gpu, load_gpu
from envs.hardware.layout import Layout, check_layout, worker_kv_law
from envs.hardware.model_shape import ModelShape, load_model
from envs.hardware.profile import Profile
from envs.hardware.records import fit_record, origin_record, tables_doubt, tables_errors
from envs.hardware.sources.compose_moe import DISTRIBUTION, ExpertComposer, check_plausible_experts
from envs.hardware.sources.grids import compose_steps
from envs.hardware.sources.host_time import host_law
from envs.hardware.sources.moe_tables import load_expert_tables
from envs.hardware.sources.op_tables import AICONFIGURATOR, check_engine
from envs.hardware.sources.table_law import compose_tables, misfit


def expert_profile_for(
    model: str,
    gpu: str,
    engine: str,
    version: str | None,
    layout: Layout,
    precision: str,
    kv_precision: str,
    data_dir: Path,
    utilisation: float = EXPERT_UTILISATION,
) -> Profile:
    """The profile of one rank; made once, then remembered.

    Args:
        model: a model's name (its own or a published one) or file.
        gpu: a GPU's name, the folder of its op tables, or a file.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: the engine's version; the nearest measured one counts. None: not known, the newest.
        layout: how the model is spread over GPUs.
        precision: of the layers' matrices: ``bf16``, ``fp8``, ``fp8_block``, ``nvfp4``, ``int4`` or ``mxfp4``.
        kv_precision: of the cache: ``bf16`` or ``fp8``.
        data_dir: the data folder.
        utilisation: share of the GPU's memory that the engine may use.

    Raises:
        ProfileError: a model or GPU that is not known, or a model that does not fit.
        MeasurementError: no op tables for it, or times that cannot be.
    """
    check_engine(engine)
    shape, sheet, home = load_model(model), load_gpu(gpu), data_dir.absolute()
    key = repr((shape, sheet, engine, version, layout, precision, kv_precision, home, utilisation))  # by content
    if key not in _made:
        _made[key] = _profile(shape, sheet, engine, version, layout, precision, kv_precision, home, utilisation)
    return _made[key]


_made: dict[str, Profile] = {}


def _profile(
    shape: ModelShape,
    gpu: Gpu,
    engine: str,
    version: str | None,
    layout: Layout,
    precision: str,
    kv_precision: str,
    data_dir: Path,
    utilisation: float,
) -> Profile:
    check_layout(shape, layout, precision)
    kv = worker_kv_law(shape, gpu, layout, precision, kv_precision, utilisation)
    ops = load_expert_tables(data_dir, tables_folder(gpu, data_dir), engine, version, shape, precision)
    place = (ops, shape, gpu, layout.tensor_parallel, precision, kv_precision, True, version)
    composer = ExpertComposer(*place, layout=layout)
    points = compose_steps(composer, MAX_TOKENS, MAX_SEQS, kv.capacity_tokens)
    check_plausible_experts(points, composer, precision)
    host = host_law(data_dir, engine, version)
    tables = compose_tables(composer, MAX_TOKENS, MAX_SEQS, kv.capacity_tokens, host)
    fit = fit_step_law(points)
    standing_in = f"; op times of {ops.gpu} stand in" if ops.gpu != gpu.tables else ""
    return Profile(
        name=f"{shape.name}-{precision}-{gpu.name}-tp{layout.tensor_parallel}-dp{layout.attention_dp}"
        f"-ep{layout.expert_parallel}-{engine}",
        model=shape.name,
        gpu=gpu.name,
        tensor_parallel=layout.tensor_parallel,
        engine=engine,
        precision=precision,
        step=fit.law,
        kv=kv,
        source={
            "kind": "estimated",
            **origin_record(AICONFIGURATOR),
            "method": "engine steps composed as served from op times (envs/hardware/sources), fitted to no run that "
            f"it predicts{standing_in}",
            "tables": f"{ops.gpu}, {engine} {ops.version}",
            "layout": {
                "tensor_parallel": layout.tensor_parallel,
                "attention_dp": layout.attention_dp,
                "expert_parallel": layout.expert_parallel,
            },
            "tokens_over_experts": DISTRIBUTION[shape.latent is not None],
            "host_time": host.source,
            "files": [{"path": path, "sha256": digest} for path, digest in ops.files()],
        },
        fit=fit_record(fit)
        | {
            "tables_errors_percent": tables_errors(misfit(tables, points)),
            "tables_relative_sd": tables_doubt(misfit(tables, points), tables.h0_s),
        },
        engine_version=version or "",
        tables=tables,
    )
