"""A stand-in for the Habana bridge: the path of a Gaudi job, end to end, on the cpu."""
