"""The project's own measurements: real kernels timed with torch, written as the tables that the op adapters read."""
