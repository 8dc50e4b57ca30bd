"""The expanded text of a rule is the rule: same answers, also where Python's order of evaluation shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from policies.contract import Action
from policies.export.expand import CannotExpandError, expand
from policies.registry import load, names
from tests.envs.cluster.rules import RULES
from tests.policies.views import memory_namespace, param_namespace, random_view


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


class Memory:
    count = 1.0


@pytest.mark.parametrize("rule", [order, plain_guards])
def test_order_of_evaluation_is_kept(rule: Callable[..., Any]) -> None:
    assert compiled(rule)(None, [], None, Memory(), 0) == rule(None, [], None, Memory(), 0)


def test_small_loops_are_written_out() -> None:
    assert "for i in" not in expand(plain_guards)


@pytest.mark.parametrize("rule", [guards, lambda request: None])
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
