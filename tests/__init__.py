"""The tests mirror the rooms; being one package keeps tests/envs apart from envs."""
