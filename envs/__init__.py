"""Simulated clusters and the Gymnasium environments over them.

``import envs`` makes ``gymnasium.make("PDRouting-v0", trace="azure_conv", clusters=["2p2d"])`` work, and loads
nothing else.
"""

from envs._register import register_lazily

register_lazily()
