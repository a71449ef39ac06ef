"""The speed of collectives on a mesh: each axis by itself, as in training, and beside another."""
