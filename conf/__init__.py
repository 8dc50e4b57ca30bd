"""Hydra configuration groups, packaged so that an installed copy finds them."""
