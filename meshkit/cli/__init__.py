"""The console script ``meshkit``: its commands, and the output of their results.

``main`` (main.py) parses the command line, runs one command and prints its result. ``Command`` and
``Result`` (command.py) describe a command and its outcome. :mod:`.commands` has one file a command,
:mod:`.options` the options that commands share. Only commands that need torch import it.
"""
