"""Collectives on Gaudi, played."""
