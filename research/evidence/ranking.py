"""Who is ranked on a trace, and who is not because the trace could not show what the policy does.

A policy is *prefix-aware* if it declares a signal that is worth something only through a prefix cache: the prefix
matches themselves, or a session and the workers of its last turn (a later turn goes where the earlier ones are cached).
On a trace without prefix chains nothing is ever found in a cache, whether it has sessions or not: such a policy pays
for affinity and gets nothing, so its place says nothing about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from research.study import Study
    from traces import Trace

PREFIX_SIGNALS = ("cached_tokens", "session", "turn", "since_last_turn_s", "last_prefill", "last_decode")
"""Fields of a router's view that help through cached prefixes alone."""

NOT_RANKED = "prefix-aware policies are not ranked on this trace"
REPLAYS = "replays the routes that the trace recorded"
UNDECLARED = "declares no needs, so it is taken to read prefix matches"


def has_prefixes(trace: Trace) -> bool:
    """Whether the trace says which prompts share a prefix."""
    return trace.prefix_block_tokens > 0


def declared_needs(policy: Any) -> tuple[str, ...] | None:
    """What a rule's marker says, or a Python object's attribute ``needs``; None where nothing is said."""
    spec = getattr(policy, "spec", None)
    needs = getattr(policy, "needs", None) if spec is None else spec.needs
    return None if needs is None else tuple(needs)


def prefix_signals(policy: Any) -> tuple[str, ...] | None:
    """The prefix signals that a policy declares; None for one that declares nothing."""
    needs = declared_needs(policy)
    return None if needs is None else tuple(name for name in PREFIX_SIGNALS if name in needs)


def unranked(study: Study, trace: Trace) -> dict[str, str]:
    """Policies of a study that are not ranked on its trace, with the reason."""
    blind = not has_prefixes(trace) and not study.no_shared_prefixes
    out = {}
    for choice in study.entrants:
        if choice.replays:
            out[choice.label] = REPLAYS
        elif blind:
            signals = prefix_signals(choice.build())
            if signals is None:
                out[choice.label] = UNDECLARED
            elif signals:
                out[choice.label] = f"reads {', '.join(signals)}"
    return out


def prefix_words(trace: Trace, told: bool, reasons: Mapping[str, str]) -> list[str]:
    """What is to be said where a trace has no prefix information.

    Args:
        trace: the trace.
        told: the user knows that its requests share no prefixes.
        reasons: of :func:`unranked`.
    """
    if has_prefixes(trace):
        return []
    sessions = " (it has sessions, but not what their turns share)" if trace.n_sessions else ""
    if told:
        return [
            f"The trace has no prefix information{sessions}: prefix-aware policies are ranked as told "
            "(no_shared_prefixes=true), which is right only if its requests share no prefixes."
        ]
    whom = ", ".join(label for label, reason in reasons.items() if reason != REPLAYS)
    lines = [
        f"{NOT_RANKED} ({whom or 'none of those compared here'}): it has no prefix information{sessions}, so what they "
        "would gain from caches cannot be seen. If its requests share none, no_shared_prefixes=true ranks them."
    ]
    if assumed := [label for label, reason in reasons.items() if reason == UNDECLARED]:
        lines.append(
            f"{', '.join(assumed)} {UNDECLARED}: an attribute needs (a tuple of the fields it reads) says otherwise."
        )
    return lines
