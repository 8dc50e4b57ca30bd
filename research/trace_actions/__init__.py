"""What ``research.traces`` can do: one file an action, each with ``KEYS``, the settings it reads, and
``run(config, out) -> figures for summary.json``.
"""
