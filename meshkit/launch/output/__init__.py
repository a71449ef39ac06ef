"""Write to the terminal and to files: log lines, progress, errors.

``log.py`` has the lines of rank 0, and ``progress.py`` those of long work. ``brief_error.py`` and
``error_file.py`` write an error that many ranks raise. ``console.py`` tells what a terminal can
show.
"""
