"""Data on a live mesh: which samples, tokens and random numbers this rank uses."""
