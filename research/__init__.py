"""The commands people run, ``python -m research.COMMAND key=value ...``, and the evidence they leave."""
