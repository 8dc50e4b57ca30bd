"""What choosing the next tokens takes, by engine, version and how requests ask for it.

A client that asks for temperature 0 gets the largest logit (*greedy*). One that asks for nothing gets the server's
defaults, which are the model's own recommendation (``generation_config.json``: a temperature, top-p and often top-k for
Llama Instruct, Qwen3 and DeepSeek) in vLLM, and in SGLang since 0.5.4 (sgl-project/sglang pull request 11304; before,
temperature 0.7 and nothing else). TensorRT-LLM then takes the largest logit (its ``docs/source/features/sampling.md``).

How vLLM cuts the distribution to top-k and top-p depends on its version, and for many sequences it is no small part of
a step: it sorts all logits (``vllm/v1/sample/ops/topk_topp_sampler.py``); since 0.18.0 a Triton kernel searches them
(vllm-project/vllm pull request 33538), since 0.22.0 FlashInfer's rejection sampling is the default (40376); these are
the first versions whose documentation was seen to have it. The times are published with these pull requests,
for top-k and top-p together over VOCABULARY logits in float32, on GPUs that are not named; where two were measured,
their geometric mean. PyTorch changes its way of sorting at 128 sequences, hence the step there.

Softmax and drawing pass over the logits in 32 bits, and are counted by their bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from envs.hardware.errors import ProfileError
from envs.hardware.sources.versions import at_least

GREEDY: Final = "greedy"
DEFAULT: Final = "default"
SAMPLING = (GREEDY, DEFAULT)
"""What clients ask for: the likeliest token, or nothing, so that the server's defaults hold."""

VOCABULARY = 131072
KERNELS: dict[str, tuple[tuple[int, float], ...]] = {
    # vllm-project/vllm pull requests 40376 and 51507: 1.074 and 1.164 ms at 64, 2.399 and 4.231 at 128, 6.427 at 512;
    # a single sequence by its launches (0.130 ms, pull request 51507)
    "sort": ((1, 0.13e-3), (64, 1.12e-3), (128, 3.19e-3), (512, 6.43e-3)),
    # pull request 40376: Triton and FlashInfer columns; a single sequence is an assumption, half of what sorting takes
    "triton": ((1, 0.06e-3), (64, 0.311e-3), (128, 0.359e-3), (512, 1.12e-3)),
    "flashinfer": ((1, 0.06e-3), (64, 0.199e-3), (128, 0.267e-3), (512, 0.488e-3)),
}
"""(sequences, seconds) of cutting VOCABULARY logits of each to top-k and top-p."""
TRITON_VLLM, FLASHINFER_VLLM = "0.18.0", "0.22.0"
"""First vLLM versions that search with Triton, and that use FlashInfer, by default."""
MODEL_DEFAULTS_SGLANG = "0.5.4"
"""First SGLang version whose defaults are the model's."""
GREEDY_PASSES, DRAWN_PASSES = 1, 10
"""Passes over the logits in 32 bits: finding the largest; or temperature (2), softmax (3), exponential numbers (1),
division (3), finding the largest (1)."""


def kernel_of(engine: str, version: str | None, sampling: str) -> str | None:
    """The kernel that cuts the distribution, a name of KERNELS; None where it is not cut.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: None: not known, taken as the newest.
        sampling: one of SAMPLING.

    Raises:
        ProfileError: an unknown way of sampling.
    """
    if sampling not in SAMPLING:
        raise ProfileError(f"sampling {sampling!r}: expected one of {', '.join(SAMPLING)}")
    if sampling == GREEDY or engine == "trtllm":
        return None
    if engine == "sglang":
        return "flashinfer" if at_least(version, MODEL_DEFAULTS_SGLANG) else None
    if at_least(version, FLASHINFER_VLLM):
        return "flashinfer"
    return "triton" if at_least(version, TRITON_VLLM) else "sort"


def cut_s(kernel: str | None, sequences: int, vocabulary: int) -> float:
    """Time of cutting the distributions of ``sequences`` tokens, in seconds; 0 for None."""
    if kernel is None:
        return 0.0
    counts, seconds = zip(*KERNELS[kernel], strict=True)
    time_s = float(np.interp(sequences, counts, seconds))
    if sequences > counts[-1]:
        time_s = seconds[-1] * sequences / counts[-1]
    return time_s * max(1.0, vocabulary / VOCABULARY)


def passes(engine: str, sampling: str) -> int:
    """How often the logits are read or written."""
    return GREEDY_PASSES if sampling == GREEDY or engine == "trtllm" else DRAWN_PASSES
