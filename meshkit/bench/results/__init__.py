"""Results of a benchmark: the measured collectives, their groups, and their speed.

Pure data and arithmetic, without torch. ``BenchmarkRun`` (run.py) holds a ``Measurement``
(measurement.py) for each ``Target`` (targets.py), size and mode. ``results_table`` (table.py) and
``run_to_json`` (json_format.py) write it; ``OPERATIONS`` (collectives.py) lists the collectives.
"""
