"""Validation of the simulator against measured serving runs, one idea a file; the command is ``research.validate``."""
