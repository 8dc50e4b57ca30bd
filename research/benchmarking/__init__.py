"""What ``python -m research.benchmark`` measures, one subject a file.

Each has ``DEFAULTS`` (its settings), ``HOW`` (the title's words), ``NEXT`` (what to run next) and ``rows(config)``.
"""
