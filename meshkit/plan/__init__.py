"""Predict the memory and the time of a training step, and show a job before it runs.

memory.py and step_time.py are the models. layout_cost.py has the figures of a layout, search.py
ranks the layouts of a world, and compare.py counts what moves between two. job_report.py and
rank_report.py are what ``meshkit plan`` and ``meshkit explain`` print, and plain_program.py is what
``meshkit eject`` writes.
"""
