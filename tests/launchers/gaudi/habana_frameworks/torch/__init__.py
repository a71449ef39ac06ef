"""torch on Gaudi, played."""
