"""Exporters: a policy leaves the workbench as a folder that a real router loads."""
