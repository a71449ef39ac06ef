"""The version of meshkit: ranks of one job must have the same."""

VERSION = "0.1.0"  # of pyproject.toml; a test compares them
