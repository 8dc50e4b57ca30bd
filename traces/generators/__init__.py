"""Generators fitted from a trace: a few readable numbers in a YAML file, and traces of any length drawn from them."""
