"""Measurements of meshkit, each against plain torch in the same run: ``python -m benchmarks.x``."""
