"""Op tables of mixture-of-experts models: grouped products, collectives, all-to-alls, windowed and latent attention.

What the columns mean, as far as their names do not say (each checked against what the GPU can do):

* ``num_tokens`` of the expert tables counts the tokens of *all* data-parallel ranks, before they are dealt to experts:
  16,384 tokens of DeepSeek-V3 over 8 groups in fp8 take 0.86 ms on a B200, a third of the time that peak arithmetic
  would need for so many tokens on every GPU. The time is that of the busiest group, under the named ``distribution`` of
  tokens over experts, so that a slowest rank is already in it.
* ``message_size`` of NCCL tables counts elements of the whole result (all-gather), input (reduce-scatter) or send
  buffer (all-to-all): as bytes, ``half`` and ``int8`` rows of one size would take the same time; they differ by two.
* DeepEP tables are in microseconds; their ``num_token`` are tokens of one rank.
* ``step`` of a decode counts cached tokens in kernel tables, and the step's own too in module tables.

A point that several kernels were measured for takes the fastest kernel's time: which one runs is a setting of the
engine, and guides set it by load. More tokens than any measured run in several passes of equal size, as engines do.

Where a table lacks what an engine runs, another engine's rows of the same kernel stand in: TensorRT-LLM's
own Blackwell kernels for experts in fp8 blocks, and for mxfp4 with 8-bit activations (its default there by its guide
for gpt-oss, and what vLLM's guide switches on), are in full in SGLang's table only (``flashinfer_trtllm``). Behind
DeepEP, experts run on tokens that are already sorted, by kernels with tables of their own (``wideep``), where there
are any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from envs.hardware.attention_kinds import EXPERT_BYTES, part_precision
from envs.hardware.errors import OutsideError
from envs.hardware.model_shape import ModelShape
from envs.hardware.sources.files import Table, check_times, read_table
from envs.hardware.sources.mla_tables import LATENT, fastest, read_latent
from envs.hardware.sources.op_tables import OpTables, attention_point, load_op_tables, table_dtype, tables_home
from envs.hardware.sources.versions import nearest_version

EXPERT_DTYPES = {
    "bf16": ("bfloat16",),
    "fp16": ("bfloat16",),
    "fp8": ("fp8",),
    "fp8_dynamic": ("fp8",),
    "fp8_block": ("fp8_block",),
    "nvfp4": ("nvfp4",),
    "int4": ("int4_wo",),
    "mxfp4": ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4"),
}
"""Precision of experts -> the tables' dtypes; where several, the faster kernel counts here too."""
STAND_IN = {
    ("trtllm", "fp8_block"): "sglang",
    ("trtllm", "w4a8_mxfp4_mxfp8"): "sglang",
    ("vllm", "w4a8_mxfp4_mxfp8"): "sglang",
}
"""(engine, dtype) -> the engine whose rows of the same kernels are read too."""
STAND_IN_KERNEL = "flashinfer_trtllm"
"""Those kernels, by what the name of their source holds; no GPU before Blackwell has them."""
BEHIND_DEEPEP = ("wideep_generation_moe_perf.parquet", "wideep_context_moe_perf.parquet")
NODE_GPUS = 8
"""GPUs that collectives were measured on at most."""
CROSS_S, CROSS_BYTES_PER_S = 19e-6, 35.9e9
"""Base and bandwidth of each GPU's port between nodes: vidur's NCCL send_recv tables, H100 (microsoft/vidur)."""
DEEPEP_SMS = 20
"""SMs of DeepEP's throughput kernels: its default, and SGLang's."""
DEEPEP = {
    "low latency": ("wideep_deepep_ll_perf.parquet", ("dispatch_avg_t_us",), ("combine_avg_t_us",)),
    "throughput": (
        "wideep_deepep_normal_perf.parquet",
        ("dispatch_transmit_us", "dispatch_notify_us"),
        ("combine_transmit_us", "combine_notify_us"),
    ),
}


@dataclass(slots=True)
class ExpertTables(OpTables):
    """The tables of one GPU, engine and version for one model. Times are returned in seconds.

    Attributes:
        latent: which latent tables there are: ``module`` (a layer's whole attention), ``kernel``, or none.
        attention: precision of a module's products.
    """

    latent: str = ""
    attention: str = "bf16"

    def files(self) -> list[tuple[str, str]]:
        """(path below the data folder, sha256) of every file whose rows were used."""
        used = {str(key[0]) for key in self._curves} | {"gemm"}
        return sorted({(table.relative, table.sha256) for name, table in self.tables.items() if name in used})

    def experts_s(
        self,
        tokens: int,
        precision: str,
        tensor_parallel: int,
        expert_parallel: int,
        distribution: str,
        behind_deepep: bool = False,
    ) -> float:
        """Time of the routed experts of one layer on the busiest GPU.

        Args:
            tokens: of all ranks.
            precision: of the experts.
            tensor_parallel: GPUs that split each expert.
            expert_parallel: groups of GPUs that experts are dealt out to.
            distribution: of tokens over experts.
            behind_deepep: whether DeepEP brings the tokens; where experts behind it were not measured, others count.

        Raises:
            OutsideError: no such experts were measured.
        """
        point = {"moe_tp_size": tensor_parallel, "moe_ep_size": expert_parallel, "distribution": distribution}
        if behind_deepep and (found := self._behind_deepep_s(tokens, precision, point)):
            return found
        passes = math.ceil(tokens / self._most("moe experts", "num_tokens"))
        times, reason = [], None
        for dtype in EXPERT_DTYPES[precision]:
            for table in ("moe experts", f"moe experts {dtype}"):
                if table in self.tables:
                    try:
                        times.append(self._at(table, "num_tokens", tokens / passes, {"moe_dtype": dtype} | point))
                    except OutsideError as error:
                        reason = reason or error
        if not times:
            raise reason or OutsideError(f"{self.gpu}, {self.engine}: no experts in {precision} were measured")
        return passes * min(times)

    def _behind_deepep_s(self, tokens: int, precision: str, point: dict[str, object]) -> float:
        """The faster of its two kinds of kernel; 0 where neither was measured for such experts."""
        times = []
        for dtype in EXPERT_DTYPES[precision]:
            for file in BEHIND_DEEPEP:
                place = {"moe_dtype": dtype} | point
                curve = self.curve(file, "num_tokens", place) if file in self.tables else None
                if curve is None:
                    continue
                # Fewer tokens than any measured take as long; more, in several passes where kernels take prompts.
                passes = math.ceil(tokens / curve.x[-1])
                if passes == 1 or file == BEHIND_DEEPEP[-1]:
                    times.append(passes * curve.at(tokens / passes) * 1e-3)
        return min(times, default=0.0)

    def collective_s(self, op: str, elements: float, gpus: int, domain_gpus: int) -> float:
        """Time of an NCCL collective over 16-bit elements; beyond NODE_GPUS that of NODE_GPUS, and the wire.

        Args:
            op: ``all_gather``, ``reduce_scatter``, ``all_reduce`` or ``alltoall``.
            elements: of the whole result, or of the send buffer.
            gpus: how many take part.
            domain_gpus: GPUs that NVLink joins; among more, bytes cross the nodes' ports.
        """
        if gpus == 1:
            return 0.0
        point = {"op_name": op, "num_gpus": min(gpus, NODE_GPUS)}
        return self._bounded("nccl", elements, point) + _cross_s(op, elements, gpus, domain_gpus)

    def allreduce_s(self, elements: int, gpus: int, captured: bool) -> float:
        """Time of the engine's all-reduce; beyond NODE_GPUS, which no table has, that of NODE_GPUS."""
        return OpTables.allreduce_s(self, elements, min(gpus, NODE_GPUS), captured)

    def reduce_s(self, elements: int, gpus: int, captured: bool, domain_gpus: int) -> float:
        """Time of an all-reduce: the engine's own where NVLink joins the GPUs, NCCL's across nodes."""
        if gpus <= domain_gpus:
            return self.allreduce_s(elements, gpus, captured)
        return self.collective_s("all_reduce", elements, gpus, domain_gpus)

    def deepep_s(self, tokens: int, gpus: int, domain_gpus: int) -> float:
        """Time of DeepEP's dispatch and combine, by whichever of its two kinds of kernel is faster.

        Args:
            tokens: of one rank.
            gpus: ranks; a table of more nodes counts beyond ``domain_gpus``.
            domain_gpus: GPUs that NVLink joins.

        Raises:
            OutsideError: none was measured on so many nodes for this model.
        """
        nodes = max(1, gpus // NODE_GPUS) if gpus > domain_gpus else 1
        times, reason = [], None
        for kind in DEEPEP:
            name = f"deepep {kind}"
            if name not in self.tables:
                continue
            most = self._most(name, "num_token")
            if kind == "low latency" and tokens > most:
                continue
            passes = math.ceil(tokens / most)
            try:
                times.append(passes * self._at(name, "num_token", tokens / passes, {"node_num": nodes}))
            except OutsideError as error:
                reason = reason or error
        if not times:
            raise reason or OutsideError(f"{self.gpu}, {self.engine}: no DeepEP kernels of this model were measured")
        return min(times)

    def window_prefill_s(self, tokens: int, batch: int, heads: tuple[int, int, int], kv: str) -> float:
        """Attention of ``batch`` prompts over the model's window; ``heads`` as in Composer.heads."""
        return self._at("window context", "tokens", tokens, attention_point(*heads, kv) | {"batch_size": batch})

    def window_decode_s(self, context: int, batch: int, heads: tuple[int, int, int], kv: str) -> float:
        """Attention of ``batch`` decodes over the model's window."""
        point = attention_point(*heads, kv) | {"batch_size": batch}
        return self._at("window generation", "tokens", context, point)

    def latent_s(self, phase: str, tokens: int, batch: int, heads: int, kv: str) -> float:
        """Latent attention of one layer: the whole module, or the kernel alone, by :attr:`latent`.

        Args:
            phase: ``context`` or ``generation``.
            tokens: of each prompt, or each decode's context with its own.
            batch: prompts or decodes.
            heads: query heads of one GPU.
            kv: precision of the cache.
        """
        point = self._latent_point(phase, heads, kv) | {"batch_size": batch}
        return self._at(f"mla {phase}", "tokens", tokens, point)

    def absorbed_s(self, tokens: int, heads: int) -> float:
        """The two products around the kernel that take a decode's queries into the latent space and back, in bf16."""
        return sum(
            self._at("mla products", "num_tokens", tokens, {"op_name": op, "num_heads": heads})
            for op in ("mla_gen_pre", "mla_gen_post")
        )

    def decode_grid(self, heads: int, kv_heads: int, head_dim: int, kv: str) -> list[tuple[int, int]]:
        """Measured (batch, context) points of decodes."""
        if "mla generation" not in self.tables:
            return OpTables.decode_grid(self, heads, kv_heads, head_dim, kv)
        point = self._latent_point("generation", heads, kv)
        frame = self.tables["mla generation"].frame.filter(*(pl.col(name) == value for name, value in point.items()))
        return sorted((int(b), int(s)) for b, s in frame.select("batch_size", "tokens").iter_rows())

    def gemm_rows(self, precision: str) -> list[int]:
        """Numbers of rows at which products were measured: 16-bit ones where only experts are in this precision."""
        return OpTables.gemm_rows(self, "bf16" if precision in EXPERT_BYTES else precision)

    def _latent_point(self, phase: str, heads: int, kv: str) -> dict[str, object]:
        if f"mla {phase}" not in self.tables:
            raise OutsideError(f"{self.gpu}, {self.engine}: no latent attention was measured")
        point: dict[str, object] = {"num_heads": heads, "kv_cache_dtype": table_dtype(kv)}
        return point | {"gemm_type": table_dtype(self.attention)} if self.latent == "module" else point

    def _most(self, table: str, axis: str) -> int:
        """Largest measured value."""
        if table not in self.tables:
            raise OutsideError(f"{self.gpu}, {self.engine}: no table of {table}")
        if (axis, table) not in self._axes:
            self._axes[axis, table] = [int(self.tables[table].frame[axis].max())]  # type: ignore[arg-type]
        return self._axes[axis, table][0]

    def _bounded(self, table: str, size: float, point: dict[str, object]) -> float:
        """At ``size``, the smallest message's time below all measured ones, in proportion to the largest's above."""
        most = self._most(table, "message_size")
        least = float(self.tables[table].frame["message_size"].min())  # type: ignore[arg-type]
        inside = min(max(size, least), most)
        return self._at(table, "message_size", inside, point) * max(1.0, size / most)


def _cross_s(op: str, elements: float, gpus: int, domain_gpus: int) -> float:
    """What crosses between nodes: every port carries its share of what other nodes hold."""
    if gpus <= domain_gpus:
        return 0.0
    outside = 1.0 - domain_gpus / gpus
    ports = 1 if op == "alltoall" else domain_gpus
    turns = 2 if op == "all_reduce" else 1
    return turns * (CROSS_S + 2.0 * elements * outside / ports / CROSS_BYTES_PER_S)


def load_expert_tables(
    data_dir: Path, gpu: str, engine: str, version: str | None, shape: ModelShape, precision: str
) -> ExpertTables:
    """Read one GPU's tables of one engine and model, each at the measured version nearest to ``version``.

    Args:
        data_dir: the data folder.
        gpu: folder of the GPU.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: the engine's version; None: the newest measured.
        shape: the model.
        precision: of the checkpoint.

    Raises:
        MeasurementError: a file is missing or holds what cannot be a measurement.
    """
    dense = load_op_tables(data_dir, gpu, engine, version)
    tables, latent = dict(dense.tables), ""
    home, root = tables_home(data_dir, gpu)

    def relative(op: str, engine: str, file: str, version: str | None) -> str:
        folder = f"{root}/{gpu}/{op}/{engine}"
        return f"{folder}/{nearest_version(home / folder, file, version)}/{file}"

    def there(op: str, engine: str, file: str) -> bool:
        return any((home / root / gpu / op / engine).glob(f"*/{file}"))

    if shape.experts:
        tables["moe experts"] = _read_experts(home, relative("moe", engine, "moe_perf.parquet", version), shape)
        for (whose, dtype), other in STAND_IN.items():
            if whose == engine and there("moe", other, "moe_perf.parquet"):
                path = relative("moe", other, "moe_perf.parquet", None)
                tables[f"moe experts {dtype}"] = _read_experts(home, path, shape, needed=False, kernel=STAND_IN_KERNEL)
        for file in BEHIND_DEEPEP:
            if engine == "sglang" and there("moe", engine, file):
                tables |= {file: _read_experts(home, relative("moe", engine, file, version), shape, needed=False)}
        tables["nccl"] = _read_nccl(home, relative("comm", "nccl", "nccl_perf.parquet", None))
        for kind, (file, *columns) in DEEPEP.items():
            if engine == "sglang" and there("comm", engine, file):
                table = _read_deepep(home, relative("comm", engine, file, version), shape, columns)
                tables |= {f"deepep {kind}": table} if table else {}
    if shape.latent:
        kinds = [kind for kind, files in LATENT.items() if there("mla", engine, files["generation"])]
        latent = kinds[0] if kinds else ""
        for phase in ("context", "generation") if kinds else ():
            tables[f"mla {phase}"] = read_latent(home, relative("mla", engine, LATENT[latent][phase], version), phase)
        if there("mla_bmm", engine, "mla_bmm_perf.parquet"):
            tables["mla products"] = _read_absorbed(home, relative("mla_bmm", engine, "mla_bmm_perf.parquet", version))
    windows = {group.window for group in shape.attention if group.kind == "window"}
    if len(windows) > 1:
        raise OutsideError(f"{shape.name}: windows of {sorted(windows)} tokens: expected one window")
    if windows:
        windowed = load_op_tables(data_dir, gpu, engine, version, window=max(windows)).tables
        tables |= {f"window {phase}": windowed[phase] for phase in ("context", "generation")}
    attention = part_precision(precision, "attention", shape.latent is not None)
    return ExpertTables(dense.gpu, engine, dense.version, tables, latent=latent, attention=attention)


def _read_experts(home: Path, relative: str, shape: ModelShape, needed: bool = True, kernel: str = "") -> Table:
    """Rows of the model's experts; of ``kernel`` only, by what its source's name holds, where one is given."""
    assert shape.experts is not None
    words = {"moe_dtype": pl.String, "distribution": pl.String}
    sizes = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    columns = words | dict.fromkeys(sizes, pl.Int64) | {"latency": pl.Float64}
    table = read_table(home, relative, columns, {"kernel_source": pl.String})
    check_times(table, "latency")
    frame = table.frame.filter(
        pl.col("hidden_size") == shape.hidden,
        pl.col("inter_size") == shape.experts.intermediate,
        pl.col("topk") == shape.experts.per_token,
        pl.col("num_experts") == shape.experts.count,
    )
    if kernel and "kernel_source" in frame.columns:
        frame = frame.filter(pl.col("kernel_source").str.contains(kernel, literal=True))
    if needed and frame.is_empty():
        raise OutsideError(f"{relative}: no experts of {shape.name}'s shape were measured")
    return fastest(Table(relative, table.sha256, frame), [*words, "num_tokens", "moe_tp_size", "moe_ep_size"])


def _read_nccl(home: Path, relative: str) -> Table:
    columns = {"op_name": pl.String, "nccl_dtype": pl.String, "num_gpus": pl.Int64, "message_size": pl.Int64}
    table = read_table(home, relative, {**columns, "latency": pl.Float64})
    check_times(table, "latency")
    half = Table(relative, table.sha256, table.frame.filter(pl.col("nccl_dtype") == "half"))
    return fastest(half, ["op_name", "num_gpus", "message_size"])


def _read_deepep(home: Path, relative: str, shape: ModelShape, columns: list[tuple[str, ...]]) -> Table | None:
    """Dispatch and combine together, in ms; None where this model's tokens were not sent."""
    assert shape.experts is not None
    parts = [name for both in columns for name in both]
    sizes = dict.fromkeys(("node_num", "hidden_size", "num_token", "num_topk", "num_experts"), pl.Int64)
    table = read_table(home, relative, sizes | dict.fromkeys(parts, pl.Float64), {"dispatch_sms": pl.Int64})
    frame = table.frame.filter(
        pl.col("hidden_size") == shape.hidden,
        pl.col("num_topk") == shape.experts.per_token,
        pl.col("num_experts") == shape.experts.count,
    )
    if "dispatch_sms" in frame.columns:
        frame = frame.filter(pl.col("dispatch_sms") == DEEPEP_SMS)
    if frame.is_empty():
        return None
    frame = frame.with_columns(latency=pl.sum_horizontal(parts) / 1e3)
    table = Table(relative, table.sha256, frame)
    check_times(table, "latency")
    return fastest(table, ["node_num", "num_token"])


def _read_absorbed(home: Path, relative: str) -> Table:
    columns = {"op_name": pl.String, "bmm_dtype": pl.String, "num_tokens": pl.Int64, "num_heads": pl.Int64}
    table = read_table(home, relative, {**columns, "latency": pl.Float64})
    check_times(table, "latency")
    half = Table(relative, table.sha256, table.frame.filter(pl.col("bmm_dtype") == "bfloat16"))
    return fastest(half, ["op_name", "num_tokens", "num_heads"])
