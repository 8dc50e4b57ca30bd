"""What ``research.traces`` can do, one file an action.

Each has ``KEYS``, the settings it reads, and ``run(config, out) -> figures for summary.json``.
"""
