"""Write to the terminal and to files: log lines, progress, errors.

``log.py`` has the lines of rank 0, ``progress.py`` those of long work, ``brief_error.py`` and
``error_file.py`` an error that many ranks raise, and ``console.py`` what a terminal can show.
"""
