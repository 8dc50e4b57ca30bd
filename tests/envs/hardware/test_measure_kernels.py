"""What is timed is what is meant: attention equals its plain sum, and every kernel call fits a real model's sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envs.hardware.measure import attention, gemm, kernels, run, steps
from envs.hardware.measure.lab import Lab
from envs.hardware.measure.layers import OWN, Stack, Step, step_bytes, step_flop
from envs.hardware.measure.ops import OPS
from envs.hardware.measure.plan import all_points
from envs.hardware.measure.points import scope_of
from envs.hardware.measure.timing import Timing
from envs.hardware.model_shape import LayerGroup, load_model

torch = pytest.importorskip("torch")

TOY = Path(run.__file__).parent / "toy.yaml"
HEADS, KV_HEADS, DIM = 4, 2, 32


@pytest.fixture
def lab():
    torch.manual_seed(1)
    return Lab(torch, "cpu", load_model(TOY), 2**20, 0)


def plain(q, k, v, mask=None):
    """Softmax attention of q (heads, n, d) over k (kv_heads, m, d), in double precision."""
    k, v = (t.double().repeat_interleave(q.shape[0] // k.shape[0], dim=0) for t in (k, v))
    scores = q.double() @ k.transpose(1, 2) / q.shape[2] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return (scores.softmax(dim=2) @ v).to(q.dtype)


def near(one, two):
    torch.testing.assert_close(one, two, rtol=0.03, atol=0.03)


def test_a_decode_is_the_plain_sum(lab):
    q, (k, v) = lab.random(3, HEADS, DIM), (lab.random(3, KV_HEADS, 50, DIM) for _ in range(2))
    out = kernels.decode(lab, q, k, v)
    for i in range(3):
        near(out[i], plain(q[i].unsqueeze(1), k[i], v[i])[:, 0])


def test_an_append_sees_what_is_cached_and_what_is_before_it(lab):
    new, cached = 12, 20
    q, (k, v) = lab.random(1, HEADS, new, DIM), (lab.random(1, KV_HEADS, cached + new, DIM) for _ in range(2))
    mask = torch.ones(new, cached + new, dtype=torch.bool).tril(cached)
    near(kernels.causal(lab, q, k, v)[0], plain(q[0], k[0], v[0], mask))
    # Nothing cached is the plain causal prompt.
    near(
        kernels.causal(lab, q, k[:, :, :new], v[:, :, :new])[0],
        plain(q[0], k[0, :, :new], v[0, :, :new], mask[:, cached:]),
    )


def test_a_shared_prefix_read_once_gives_the_same_sums(lab):
    prefix, own, batch, new = 40, 8, 3, 6
    pk, pv = (lab.random(1, KV_HEADS, prefix, DIM) for _ in range(2))
    dk, dv = (lab.random(batch, KV_HEADS, own, DIM) for _ in range(2))
    ck, cv = (lab.random(1, KV_HEADS, new, DIM) for _ in range(2))
    q = lab.random(batch + new, HEADS, DIM)
    decodes, chunk = kernels.own_decode(lab, q[:batch], dk, dv), kernels.own_chunk(lab, q[batch:], ck, cv)
    out, lse = (torch.cat([one, two]) for one, two in zip(decodes, chunk, strict=True))
    merged = kernels.merge(lab, kernels.shared_prefix(lab, q, pk, pv), (out, lse))
    for i in range(batch):
        k, v = torch.cat([pk[0], dk[i]], dim=1), torch.cat([pv[0], dv[i]], dim=1)
        near(merged[i], plain(q[i].unsqueeze(1), k, v)[:, 0])
    k, v = torch.cat([pk[0], ck[0]], dim=1), torch.cat([pv[0], cv[0]], dim=1)
    mask = torch.ones(new, prefix + new, dtype=torch.bool).tril(prefix)
    near(merged[batch:].transpose(0, 1), plain(q[batch:].transpose(0, 1), k, v, mask))


@pytest.mark.parametrize("prefix", ["distinct", "shared", "cascade"])
@pytest.mark.parametrize("sizes", [(5, 32), (0, 0)], ids=["mixed", "decodes"])
def test_a_step_samples_each_decode_and_the_last_prompt_token(lab, prefix, sizes):
    step = Step(*sizes, batch=3, context=32 + OWN, prefix=prefix)
    with torch.inference_mode():
        logits = Stack(lab).prepare(step)()
    assert logits.shape == (3 + bool(sizes[0]), lab.shape.vocabulary)
    assert torch.isfinite(logits).all()


def test_attention_can_be_left_out(lab):
    calls = []
    stack = Stack(lab)
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "decode", lambda *_: calls.append(1))
        stack.prepare(Step(batch=2, context=16, attend=False))()
    assert calls == []


def test_a_layer_alone_returns_what_the_next_would_read(lab):
    with torch.inference_mode():
        out = Stack(lab).prepare(Step(new=6, batch=2, context=16), layers=1, head=False)()
    assert out.shape == (8, lab.shape.hidden)


def test_work_of_a_step_by_hand():
    shape = load_model("llama-3.1-8b")
    step = Step(new=100, cached=50, batch=2, context=1000)
    pairs = 100 * (50 + 50) + 2 * 1000
    assert step_flop(shape, step) == shape.flop(102, pairs, 3)
    kv = shape.kv_bytes(50 + 100 + 2 * 1000, "bf16")
    weights = 2 * (shape.linear_params + shape.vocabulary * shape.hidden)
    assert step_bytes(shape, step) == weights + kv
    assert step_bytes(shape, replace(step, attend=False)) == weights


class _Sizes(Lab):
    """A lab whose tensors have sizes and no values: a GPU's calls, made without one."""

    __slots__ = ()

    @property
    def cuda(self) -> bool:
        return True

    def need(self, size_bytes: float) -> None:
        pass

    def copies(self, size_bytes: float) -> int:
        return 1


def _once(lab: Lab, calls: list[Callable[[], object]], captured: bool = True) -> Timing:
    with torch.inference_mode():
        calls[0]()
    return Timing(1.0, 1.0, 1.0, 1, len(calls), captured)


def test_every_kind_of_call_fits_the_sizes_of_a_real_model(monkeypatch):
    shape = replace(load_model("llama-3.1-8b"), attention=(LayerGroup("full", 1),))
    lab = _Sizes(torch, "meta", shape, 50 * 2**20, 132)
    monkeypatch.setitem(kernels.BACKENDS, "meta", "sizes only")
    for module in (gemm, attention, steps):
        monkeypatch.setattr(module, "time_calls", _once)
    points = all_points(shape, scope_of("cuda", fp8=True, gpus=1))
    chosen = [point for point in points if point.op == "interference" and point.priority == 0]
    for op in ("steps", "gemm", "context_attention", "append_attention", "generation_attention"):
        chosen += [point for point in points if point.op == op][::17]
    assert {str(p.at["gemm_dtype"]) for p in chosen if p.op == "gemm"} == {"bfloat16", "float16", "fp8"}
    for point in chosen:
        assert OPS[point.op].measure(point, lab).calls >= 1
