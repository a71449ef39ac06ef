"""Write to the terminal and to files: log lines, progress, errors.

``log.py`` has the lines of rank 0 and torchrun's error file, and ``progress.py`` the lines of long
work. ``console.py`` tells what a terminal can show.
"""
