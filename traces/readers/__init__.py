"""One reader a format; :mod:`traces.readers.registry` lists them."""
