"""Predict the memory (memory.py) and the time (step_time.py) of a training step.

search.py ranks the layouts of a world by both, and shows them.
"""
