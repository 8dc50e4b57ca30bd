"""What can be done to a trace, one file a theme. :mod:`traces.transform` has all of it, :mod:`traces.steps` by name."""
