"""Calibrated latency: profiles, links, the model shapes behind them, and the fits that make them."""
