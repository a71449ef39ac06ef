"""Measures collectives on a live mesh: each axis by itself, as in training, and beside another."""
