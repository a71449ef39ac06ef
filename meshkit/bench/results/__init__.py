"""Results of a benchmark: which collectives were measured, over which groups, and how fast.

Pure data and arithmetic, without torch: targets and sample of groups, times of one measurement, a
whole run, the line through its times, the speed of the links, and a run as JSON or as a table.
"""

from .collectives import OPERATIONS
from .json_format import run_to_json
from .measurement import Measurement
from .run import BenchmarkRun
from .table import results_table
from .targets import Target

__all__ = [
    "OPERATIONS",
    "BenchmarkRun",
    "Measurement",
    "Target",
    "results_table",
    "run_to_json",
]
