"""What an op table's rows hold around a quantised product, and what a serving engine launches around it.

A product of a quantised layer needs its input in low precision. A table's rows were timed with the kernels that make it
so inside; an engine that serves writes it with the kernel that comes before (norm, attention, activation) where it can.
The difference decides decode steps: on H100 the smallest fp8 product of TRT-LLM's table takes 12.4 us, in bf16 2.7.

That this matters was seen in a first comparison with measured serving runs. What the rules say, and how large each
effect is, comes from the tables and from published engine behaviour:

* TRT-LLM's fp8 rows were timed on a layer without a calibrated input scale (ai-dynamo/aiconfigurator,
  ``collector/trtllm/collect_gemm.py``; its pull requests 261 and 1114 say so and take it off): each call searches the
  input for its largest value (*scale*) and then quantises. Calibrated checkpoints carry the scale, so it is never paid.
* TRT-LLM quantises the input of the output product inside the attention kernel, that of the fp8 down product inside the
  gated activation (the same pull requests; ``_torch/modules``), and, in its Llama class with more than one GPU and more
  than 4,096 values, the inputs of the two others inside the fused all-reduce and norm
  (``_torch/models/modeling_llama.py``); its Qwen3 class has no such fusion.
* vLLM's fp8 rows hold a static quantisation. Served, its compiler fuses it into norms and activation; the attention
  output is quantised by a kernel of its own (``fuse_norm_quant``, ``fuse_act_quant``, not ``fuse_attn_quant``).
* SGLang's fp8 rows were timed on quantised input; served, it launches a quantisation before each product
  (sgl-project/sglang issue 31504).
* Everything else is taken as timed, vLLM's nvfp4 above all: no source says that its quantisation is fused.

Quantising takes at least QUANTISE_S. What the table's smallest fp8 products take beyond that and beyond 16-bit ones is
the search. aiconfigurator-core's own tables of the two kernels (not in the data folder) have 1.4 to 2.2 us for
quantising and 7.0 to 8.6 us for the search, on H100, B200 and GB200; the rules here give 2, 7.7 and 8.5.

Launch floors. A step that no captured graph launches takes at least as long as the host needs to launch its ops, which
short prompts on many GPUs do not fill:

* TRT-LLM captures steps of decodes only, and SGLang did so before it captured prefills piece by piece; their Python
  launches op by op. Published for such an engine: 129 prompt tokens of Qwen3-4B (36 layers) take 16.6 ms, 5.7 ms from a
  graph, and 513 tokens take no longer (wejoncy/sfllm pull request 46): EAGER_LAUNCH_S for each of the layer's ops. An
  all-reduce is taken to cost the host as much as any other. (TRT-LLM's diffusion models: 35 us between two launches,
  NVIDIA/TensorRT-LLM pull request 12653.)
* vLLM compiles its layers and captures up to 512 tokens. Beyond, and without graphs, its compiled steps take the host
  no less: published for Qwen3-30B-A3B (48 layers of experts on 4 GPUs), 34.4 ms a decode step compiled without graphs,
  11.8 ms with them (vllm-project/vllm issue 45709, on L20), which is 42 us for each of some 17 launches a layer.

Where each starts is a number of tokens, whether prompt's or decodes': the law knows the tokens of a step only.
"""

from __future__ import annotations

import math

from envs.hardware.gpu import Gpu
from envs.hardware.model_shape import BYTES, ModelShape
from envs.hardware.sources.op_tables import OpTables
from envs.hardware.sources.versions import at_least

PRODUCTS = ("qkv", "output", "gate_up", "down")
SCALE, QUANTISE = "scale", "quantise"

QUANTISE_S = 2e-6
MEMORY_SHARE = 0.8
"""Share of the peak bandwidth that kernels bound by memory reach, as aiconfigurator counts them."""

TIMED: dict[tuple[str, str], tuple[str, ...]] = {
    ("trtllm", "fp8"): (SCALE, QUANTISE),
    ("trtllm", "nvfp4"): (QUANTISE,),
    ("vllm", "fp8"): (QUANTISE,),
    ("sglang", "fp8"): (),
}
"""(engine, precision) -> quantisation kernels inside the table's rows; those not named are taken as timed."""

FUSED_FROM_HIDDEN = 4096
"""TRT-LLM's Llama class fuses norms into all-reduces above this width only."""
FUSED_FROM_VLLM = "0.16.0"
"""First vLLM version that does so by default on more than one GPU (vllm-project/vllm pull request 34299)."""
FUSED_MIB = {90: {2: 64.0, 4: 2.0, 8: 0.5}, 100: {2: 64.0, 4: 32.0, 8: 1.0}}
"""Compute capability (x 10) -> GPUs -> largest message that vLLM 0.16.0 fuses, in MiB
(``vllm/compilation/passes/fusion/allreduce_rms_fusion.py``). The kernel is FlashInfer's, which is TRT-LLM's."""


def fused_bytes(engine: str, version: str | None, shape: ModelShape, gpu: Gpu, tensor_parallel: int) -> float:
    """Largest message whose all-reduce holds the norm that follows, in bytes; 0: none does.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: the engine's version; None: not known, taken as the newest.
        shape: the model.
        gpu: the GPU; vLLM fuses on Hopper and Blackwell.
        tensor_parallel: GPUs that share the layers.
    """
    if engine == "trtllm":
        return math.inf if _fused_class(shape, tensor_parallel) else 0.0
    if engine != "vllm" or tensor_parallel == 1 or not at_least(version, FUSED_FROM_VLLM):
        return 0.0
    return FUSED_MIB.get(gpu.sm // 10 * 10, {}).get(tensor_parallel, 0.0) * 2**20


def _fused_class(shape: ModelShape, tensor_parallel: int) -> bool:
    """Whether TRT-LLM runs the model by its Llama class with fused all-reduces."""
    return tensor_parallel > 1 and shape.hidden > FUSED_FROM_HIDDEN and not shape.qk_norm


def launched(engine: str, precision: str, shape: ModelShape, tensor_parallel: int, product: str) -> tuple[str, ...]:
    """Quantisation kernels that the engine launches for one product when it serves.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        precision: of the layers' matrices.
        shape: the model; one that normalises queries and keys is no Llama class.
        tensor_parallel: GPUs that share the layers.
        product: one of PRODUCTS.
    """
    if (engine, precision) not in TIMED:
        return ()
    fused: tuple[str, ...] = ()
    if engine == "trtllm":
        fused = ("output", "down") if precision == "fp8" else ("output",)
        if _fused_class(shape, tensor_parallel):
            fused += ("qkv", "gate_up")
    elif engine == "vllm":
        fused = ("qkv", "gate_up", "down")
    return () if product in fused else (QUANTISE,)


def served_product_s(
    ops: OpTables,
    shape: ModelShape,
    gpu: Gpu,
    tensor_parallel: int,
    precision: str,
    product: str,
    m: int,
    n: int,
    k: int,
) -> float:
    """Time of an (m, k) x (k, n) product of a layer as the engine serves it, in seconds.

    Never below the launch floor of a 16-bit product.
    """
    timed_s = ops.gemm_s(m, n, k, precision)
    if (ops.engine, precision) not in TIMED:
        return timed_s
    kernels = TIMED[ops.engine, precision]
    served = launched(ops.engine, precision, shape, tensor_parallel, product)
    excess_s = sum(_kernel_s(ops, gpu, precision, kernel, m, k) for kernel in kernels if kernel not in served)
    missing_s = sum(_kernel_s(ops, gpu, precision, kernel, m, k) for kernel in served if kernel not in kernels)
    return max(ops.gemm_floor_s("bf16"), timed_s - excess_s + missing_s)


CAPTURED_TOKENS = {"vllm": 512, "sglang": 256, "trtllm": 256}
"""Largest step that an engine launches from a captured graph: vLLM's default; the decodes others capture by default."""
LAYER_OPS, LAYER_COLLECTIVES, QK_NORMS = 9, 2, 2
"""Launches of a layer: two norms, four products, rotation, attention, activation; its all-reduces; norms of queries and
keys."""
EAGER_LAUNCH_S = 16.6e-3 / 36 / (LAYER_OPS + QK_NORMS)
"""What one launch takes the host (42 us)."""
PIECEWISE_SGLANG = "0.5.10"
"""First SGLang version taken to capture prefills piece by piece by default."""


def launch_floor_s(
    ops: OpTables, engine_version: str | None, layers: int, tensor_parallel: int, qk_norm: bool = True
) -> float:
    """Least time of a step that no captured graph launches, in seconds.

    Args:
        ops: tables of the engine.
        engine_version: None: not known, taken as the newest.
        layers: decoder layers.
        tensor_parallel: GPUs that share them; more than one all-reduce twice a layer.
        qk_norm: whether queries and keys are normalised, by two launches more; a compiler fuses them.
    """
    if ops.engine == "sglang" and at_least(engine_version, PIECEWISE_SGLANG):
        return 0.0
    launches = LAYER_OPS + (LAYER_COLLECTIVES if tensor_parallel > 1 else 0)
    if qk_norm and ops.engine != "vllm":
        launches += QK_NORMS
    return layers * launches * EAGER_LAUNCH_S


def _kernel_s(ops: OpTables, gpu: Gpu, precision: str, kernel: str, m: int, k: int) -> float:
    """Time of one quantisation kernel over m x k values: its floor, or its bytes."""
    both_s = max(0.0, ops.gemm_floor_s(precision) - ops.gemm_floor_s("bf16"))
    # The search reads 16-bit values twice (largest of each part, then of all); quantising reads and writes them once.
    if kernel == SCALE:
        floor_s, value_bytes = max(0.0, both_s - QUANTISE_S), 4.0
    else:
        floor_s, value_bytes = QUANTISE_S, 2.0 + BYTES[precision]
    return max(floor_s, m * k * value_bytes / (gpu.memory_bytes_per_s * MEMORY_SHARE))
