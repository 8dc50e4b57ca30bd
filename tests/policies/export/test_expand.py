"""The expanded text of a rule is the rule: same answers, also where Python's order of evaluation shows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.contract import Action
from policies.export.expand import CannotExpandError, expand
from policies.registry import load, names
from tests.envs.cluster.rules import RULES
from tests.policies.views import memory_namespace, param_namespace, random_view

ROOT = Path(__file__).parents[3]


def compiled(decide: Callable[..., Any]) -> Callable[..., Any]:
    scope: dict[str, Any] = {}
    exec(compile(expand(decide), "expanded", "exec"), scope)
    return scope["decide"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", names())
def test_every_registered_rule_decides_the_same(name: str) -> None:
    policy = load(name)
    flat = compiled(policy.decide)
    for seed in range(150):
        request, workers = random_view(np.random.default_rng(seed))
        answers = []
        for decide in (policy.decide, flat):
            memory = memory_namespace(policy, len(workers))
            try:
                answers.append((decide(request, workers, param_namespace(policy), memory, seed), vars(memory)))
            except ZeroDivisionError:
                answers.append((ZeroDivisionError, {}))
        assert answers[0] == answers[1]


def test_helpers_are_expanded() -> None:
    text = expand(load("guard").decide)
    assert "joined_step_s(" not in text
    assert "best_route(" not in text
    assert "tie_hash(" in text


def test_the_text_is_the_same_in_every_process() -> None:
    code = "from policies.export.expand import expand; from policies.guard import decide; print(expand(decide))"
    texts = set()
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        texts.add(done.stdout)
    assert len(texts) == 1


def double(x: float) -> float:
    """Straight."""
    y: float = x + x
    return y


def sign(x: float) -> int:
    """Early exits."""
    if x > 0.0:
        return 1
    if x < 0.0:
        y = -1
        return y
    return 0


def nested(x: float, k: int = 3) -> float:
    """Branches that fall through, a loop, a default."""
    total = 0.0
    if x > 1.0:
        if x > 2.0:
            return 2.0
        total = 5.0
    for i in range(k):
        if i == 1:
            continue
        total += double(x) * sign(x - i)
    x = total
    return x


def bump(memory: Any) -> float:
    """Not pure."""
    memory.count += 1.0
    return float(memory.count)


def find(values: Any, x: float) -> int:
    """Leaves a loop early: stays a call."""
    for i in range(len(values)):
        if values[i] == x:
            return i
    return -1


def endless(x: float) -> float:
    """Recursive: stays a call."""
    return 0.0 if x < 1.0 else 1.0 + endless(x - 1.0)


def boom(x: float) -> float:
    """Must not be called where Python would not."""
    return 1.0 / x


def order(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Any:
    """Reads and changes memory in one expression, in both orders."""
    first = memory.count + double(memory.count) + bump(memory)
    second = bump(memory) + double(memory.count)
    return first, second, bump(memory) * memory.count, find([1.0, double(1.0), 3.0], 2.0), endless(3.0)


def guards(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Any:
    """Calls behind ``and``, ``or``, conditional expressions and loop conditions."""
    zero, out = 0.0, []
    for x in (-2.0, 0.0, 0.5, 1.5, 3.0):
        a = x != 0.0 and boom(x) > 1.0
        b = x == 0.0 or boom(x) > 1.0
        c = boom(x) if x != 0.0 else zero
        d = zero < x < double(x)
        n = 0
        while sign(x - n) > 0:
            n += 1
        x = nested(x) + nested(x, 2) + sign(x) * nested(double(x), sign(x) + 1)
        out.append((a, b, c, d, n, x, -nested(x), [double(y) for y in (x, n)] if False else n))
    return out


def plain_guards(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Any:
    """As ``guards``, without the comprehension, which keeps a rule from being expanded."""
    zero, out = 0.0, []
    for x in (-2.0, 0.0, 0.5, 1.5, 3.0):
        a = x != 0.0 and boom(x) > 1.0
        b = x == 0.0 or boom(x) > 1.0
        c = boom(x) if x != 0.0 else zero
        d = zero < x < double(x)
        n = 0
        while sign(x - n) > 0:
            n += 1
        x = nested(x) + nested(x, 2) + sign(x) * nested(double(x), sign(x) + 1)
        total = 0.0
        for i in range(4):
            for k in range(3):
                total += double(k) * i
        out.append((a, b, c, d, n, x, -nested(x), total, i, k))
    return out


def touch(w: Any) -> float:
    """Not pure: changes what was read before."""
    w.streams += 1
    return 0.0


def limits(a: float, b: float) -> tuple[float, float, float]:
    """The larger and the smaller of two, and of a computed pair."""
    return max(a, b), min(a, b), max(a + b, min(b, a * 2.0))


def fields(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Any:
    """Reads fields again and again while names, fields and memory change."""
    w = view[0]
    out = [w.streams + w.streams * w.streams, touch(w) + w.streams, w.streams + w.streams]
    total = 0.0
    for i in range(len(view)):
        w = view[i]
        if w.streams > 1:
            total += w.streams * w.role + w.streams
            if w.role > 0 and w.streams > w.role:
                w = view[0]
            total += w.streams + w.streams
        else:
            total -= w.streams + w.streams
        while w.streams < 5:
            w.streams += 2
            total += w.streams + w.streams
        total += 10.0 * w.streams + w.streams if w.streams > 3 else w.role
    memory.count = total + memory.count
    first = memory.count + memory.count
    memory.count += 1.0
    kept = memory
    kept.count += 1.0
    out += [first, memory.count + memory.count, total, w.streams, memory.count * bump(memory) + memory.count]
    nan = float("nan")
    for x in (0.0, 1.0, -1.0, nan):
        for y in (1, 0.0, nan):
            out += [repr(limits(x, y)), repr(max(x, y) if x == x else min(y, x, 3))]
    return out


class Memory:
    def __init__(self) -> None:
        self.count = 1.0


class Worker:
    def __init__(self, streams: int, role: int) -> None:
        self.streams, self.role = streams, role


@pytest.mark.parametrize("rule", [order, plain_guards, fields])
def test_order_of_evaluation_is_kept(rule: Callable[..., Any]) -> None:
    answers = []
    for decide in (rule, compiled(rule)):
        view = [Worker(*pair) for pair in ((2, 0), (1, 1), (4, 2), (7, 3), (0, 1))]
        memory = Memory()
        answers.append((decide(None, view, None, memory, 0), memory.count, [w.streams for w in view]))
    assert answers[0] == answers[1]


def test_fields_are_read_once_and_choices_are_no_calls() -> None:
    text = expand(load("guard").decide)
    assert "max(" not in text
    assert text.count(".c_tok_s") <= 6


def shadow(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Any:
    """A local name that hides a builtin."""
    max = view
    return max


def test_small_loops_are_written_out() -> None:
    assert "for i in" not in expand(plain_guards)


@pytest.mark.parametrize("rule", [guards, shadow, lambda request: None])
def test_what_cannot_be_read_is_refused(rule: Callable[..., Any]) -> None:
    with pytest.raises(CannotExpandError):
        expand(rule)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rules_that_do_everything(rule: Any) -> None:
    from policies.rulepolicy import RulePolicy

    policy = RulePolicy.of(rule)
    flat = compiled(rule)
    for seed in range(100):
        request, workers = random_view(np.random.default_rng(seed), roles=(2, 2, 3, 2))
        if not any(w.can_prefill for w in workers) or not any(w.can_decode for w in workers):
            continue
        answers = []
        for decide in (rule, flat):
            memory = memory_namespace(policy, len(workers))
            answers.append((decide(request, workers, param_namespace(policy), memory, 3), repr(memory)))
        assert answers[0] == answers[1]
        assert isinstance(answers[0][0], Action)
