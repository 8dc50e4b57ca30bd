"""How much of a GPU's memory each engine gives to the KV cache when nothing is set, as a share that `kv_law` takes.

``kv_law`` leaves ``memory x utilisation - weights - reserve``, which is vLLM's way (``gpu_memory_utilization``, 0.9).
The others' ways are written as the utilisation that leaves the same:

* TensorRT-LLM: ``free_gpu_memory_fraction`` (0.9) of what weights and activations leave
  (``docs/source/reference/memory.md``), so that the tenth it spares is smaller.
* SGLang: ``mem_fraction_static`` of the memory for weights and cache. Its default is what a reserve leaves
  (``python/sglang/srt/server_args.py``, ``_handle_gpu_memory_settings``): 512 MiB, 1.5 MiB for each token of a chunk,
  2 for each sequence of the largest captured graph and 128 for each GPU, at least 10 GiB where the GPU has more than
  60; chunk and graph by the GPU's memory. On 80 GB that is 0.83 to 0.84, for one GPU some 13 GiB spared.
"""

from __future__ import annotations

from envs.hardware.gpu import Gpu

MIB = 2**20
DEFAULTS = {"vllm": 0.9, "trtllm": 0.9}
"""Engine -> its setting where none is given."""
SGLANG_STEPS: tuple[tuple[float, int, int, int], ...] = (
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)
"""(memory below, GiB; chunk, tokens; sequences of the largest graph below 4 GPUs; from 4 on)."""
SGLANG_CONSTANT_MIB, SGLANG_TOKEN_MIB, SGLANG_SEQUENCE_MIB, SGLANG_GPU_MIB = 512.0, 1.5, 2.0, 128.0
SGLANG_LARGE_GIB, SGLANG_LARGE_RESERVE_MIB = 60, 10.0 * 1024


def sglang_defaults(gpu: Gpu) -> tuple[int, int, int]:
    """SGLang's chunk in tokens, and the sequences of its largest graph below 4 GPUs and from 4 on."""
    return next(row[1:] for row in SGLANG_STEPS if gpu.memory_bytes / MIB < row[0] * 1024)


def static_fraction(gpu: Gpu, tensor_parallel: int) -> float:
    """SGLang's share of the memory for weights and cache, where none is given."""
    memory_mib = gpu.memory_bytes / MIB
    chunk, few, many = sglang_defaults(gpu)
    sequences = few if tensor_parallel < 4 else many
    reserve = SGLANG_CONSTANT_MIB + chunk * SGLANG_TOKEN_MIB + sequences * SGLANG_SEQUENCE_MIB
    reserve += tensor_parallel * SGLANG_GPU_MIB
    if memory_mib > SGLANG_LARGE_GIB * 1024:
        reserve = max(reserve, SGLANG_LARGE_RESERVE_MIB)
    return round((memory_mib - reserve) / memory_mib, 3)


def utilisation(
    engine: str, gpu: Gpu, tensor_parallel: int, weight_bytes: float, reserve_bytes: float, setting: float | None
) -> float:
    """The share of a GPU's memory that leaves what the engine gives to the cache.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``; another one counts as vLLM does.
        gpu: the GPU.
        tensor_parallel: GPUs of a worker.
        weight_bytes: weights on each GPU.
        reserve_bytes: activations, graphs and buffers on each GPU, as ``kv_law`` counts them.
        setting: the engine's own setting (see above); None: its default.
    """
    memory = gpu.memory_bytes
    if engine == "sglang":
        fraction = static_fraction(gpu, tensor_parallel) if setting is None else setting
        return fraction + reserve_bytes / memory
    fraction = DEFAULTS.get(engine, DEFAULTS["vllm"]) if setting is None else setting
    if engine == "trtllm":
        held = (weight_bytes + reserve_bytes) / memory
        return held + fraction * (1.0 - held)
    return fraction
