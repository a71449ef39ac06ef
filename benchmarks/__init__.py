"""Measurements of meshkit, each against a peer in the same run: ``python -m benchmarks``.

Some stand by themselves too: ``python -m benchmarks.agreement``, ``.collectives``, ``.placement``,
``.scale``, ``.startup``.
"""
