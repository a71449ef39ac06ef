"""The version of meshkit, which must be equal on all ranks of a job."""

VERSION = "0.1.0"  # equal to the version in pyproject.toml, which a test checks
