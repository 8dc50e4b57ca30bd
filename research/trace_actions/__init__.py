"""What ``research.traces`` can do: one file an action, each with ``run(config, out) -> figures for summary.json``."""
