"""The console script ``meshkit``. Only commands that need torch import it, when they run."""
