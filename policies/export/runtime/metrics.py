"""Counts of what the router decided, as Prometheus text."""

from __future__ import annotations

from collections.abc import Iterable

BUCKETS_US = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class Metrics:
    """Decisions by kind and reason, fallbacks by cause, a histogram of decision times, faults by kind."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.decisions: dict[tuple[str, str], int] = {}
        self.fallbacks: dict[str, int] = {}
        self.faults: dict[str, int] = {}
        self.buckets = [0] * (len(BUCKETS_US) + 1)
        self.sum_ns = 0

    def decided(self, kind: str, reason: str, fallback: str, took_ns: int) -> None:
        """Count one decision."""
        key = (kind, reason)
        self.decisions[key] = self.decisions.get(key, 0) + 1
        if fallback:
            self.fallbacks[fallback] = self.fallbacks.get(fallback, 0) + 1
        at = 0
        for bound in BUCKETS_US:
            if took_ns <= bound * 1000:
                break
            at += 1
        self.buckets[at] += 1
        self.sum_ns += took_ns

    def fault(self, kind: str) -> None:
        """Count something that did not raise but was not right."""
        self.faults[kind] = self.faults.get(kind, 0) + 1

    def text(self, gauges: Iterable[tuple[str, str, float]]) -> str:
        """The metrics page; ``gauges`` are (name, help, value)."""
        own = f'policy="{_quoted(self.policy)}"'
        lines = ["# HELP pdgym_decisions_total Routing decisions.", "# TYPE pdgym_decisions_total counter"]
        for (kind, reason), count in sorted(self.decisions.items()):
            lines.append(f'pdgym_decisions_total{{{own},kind="{_quoted(kind)}",reason="{_quoted(reason)}"}} {count}')
        lines += [
            "# HELP pdgym_fallbacks_total Decisions that the fallback made in the rule's place.",
            "# TYPE pdgym_fallbacks_total counter",
        ]
        for cause, count in sorted(self.fallbacks.items()):
            lines.append(f'pdgym_fallbacks_total{{{own},cause="{_quoted(cause)}"}} {count}')
        lines += [
            "# HELP pdgym_faults_total Inputs and events that could not be used.",
            "# TYPE pdgym_faults_total counter",
        ]
        for kind, count in sorted(self.faults.items()):
            lines.append(f'pdgym_faults_total{{{own},kind="{_quoted(kind)}"}} {count}')
        lines += [
            "# HELP pdgym_decision_seconds Time of one decision.",
            "# TYPE pdgym_decision_seconds histogram",
        ]
        total = 0
        for bound, count in zip([*(b / 1e6 for b in BUCKETS_US), "+Inf"], self.buckets, strict=True):
            total += count
            lines.append(f'pdgym_decision_seconds_bucket{{{own},le="{bound}"}} {total}')
        lines.append(f"pdgym_decision_seconds_sum{{{own}}} {self.sum_ns / 1e9}")
        lines.append(f"pdgym_decision_seconds_count{{{own}}} {total}")
        for name, meaning, value in gauges:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", f"{name}{{{own}}} {value}"]
        return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
