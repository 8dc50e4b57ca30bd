"""What an exported policy can be loaded into, and what each target can carry out."""

from __future__ import annotations

from dataclasses import dataclass

from policies.contract import REQUEST_FIELDS, WORKER_FIELDS
from policies.errors import PolicyError, nearest
from policies.rulepolicy import RulePolicy

ACTIONS = {
    "local_prefill": "the decode worker prefills",
    "late_binding": "the decode worker is chosen when the prefill ends",
    "hold": "keep the request and ask again later",
    "reject": "refuse the request",
    "order_key": "order in the engine's queue",
    "chunk": "most prefill tokens a step computes for a local prefill",
}
SIGNALS = tuple(dict.fromkeys(name for name, _, _ in (*REQUEST_FIELDS, *WORKER_FIELDS)))


@dataclass(frozen=True, slots=True)
class Target:
    """A target and what it offers.

    Attributes:
        name: as in ``target=``.
        actions: of :data:`ACTIONS`, those that it can carry out.
        signals: fields of the contract that it can give a rule.
    """

    name: str
    actions: frozenset[str]
    signals: frozenset[str]


MODULE = Target("module", frozenset(ACTIONS), frozenset(SIGNALS))
"""A Python module: it tells the router everything, and the router's own code carries it out."""

TARGETS = {MODULE.name: MODULE}


def find_target(name: str) -> Target:
    """The target of that name.

    Raises:
        PolicyError: there is none.
    """
    if name not in TARGETS:
        raise PolicyError(f"target={name}: unknown{nearest(name, TARGETS)}: expected one of {', '.join(TARGETS)}")
    return TARGETS[name]


def check_needs(policy: RulePolicy, target: Target) -> None:
    """That ``target`` offers all that the policy declares to need.

    Raises:
        PolicyError: names what is missing, or a need that nobody knows.
    """
    known = (*ACTIONS, *SIGNALS)
    for need in policy.spec.needs:
        if need not in known:
            raise PolicyError(
                f"policy {policy.name}: needs {need!r}, which is nothing a target offers{nearest(need, known)}"
            )
        if need in ACTIONS and need not in target.actions:
            raise PolicyError(f"policy {policy.name} needs {need} ({ACTIONS[need]}), which target {target.name} lacks")
        if need not in ACTIONS and need not in target.signals:
            raise PolicyError(f"policy {policy.name} needs the signal {need}, which target {target.name} does not have")
    if policy.spec.bind is not None and "late_binding" not in target.actions:
        raise PolicyError(f"policy {policy.name} binds late, which target {target.name} cannot")
