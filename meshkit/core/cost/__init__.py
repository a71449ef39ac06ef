"""Predict the memory (memory.py) and the time (step_time.py) of a training step.

layout_cost.py has the figures of a layout and the tables of several. search.py ranks the layouts of
a world, and compare.py counts the weights and samples that move between two.
"""
