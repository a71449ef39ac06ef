"""Benchmarks: how long meshkit takes, beside its peers, on the same work in one run.

``harness`` holds the rows and the timing, ``report`` the tables, the plots and the README section.
Every other file is one benchmark: a function ``run(quick) -> list[Row]``.
"""
