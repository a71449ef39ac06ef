"""Benchmarks: how long meshkit takes, beside its peers, on the same work in one run.

Each file but ``harness`` and ``report`` is a benchmark: a function ``run(quick) -> list[Row]``.
"""
