"""What ``research.calibrate`` does, one file an action."""
