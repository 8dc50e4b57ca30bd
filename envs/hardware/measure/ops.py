"""The tables that are measured, by name, in the order of their use."""

from __future__ import annotations

from envs.hardware.measure.attention import APPEND, CONTEXT, GENERATION
from envs.hardware.measure.copies import COPIES
from envs.hardware.measure.gemm import GEMM
from envs.hardware.measure.interference import INTERFERENCE
from envs.hardware.measure.points import Op
from envs.hardware.measure.sharing import SM_SHARE
from envs.hardware.measure.steps import STEPS

OPS: dict[str, Op] = {
    "steps": STEPS,
    "gemm": GEMM,
    "context_attention": CONTEXT,
    "append_attention": APPEND,
    "generation_attention": GENERATION,
    "interference": INTERFERENCE,
    "copies": COPIES,
    "sm_share": SM_SHARE,
}
