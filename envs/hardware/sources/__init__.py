"""Measurement files in, step times or transfer times out: one adapter a source."""
