"""What is true before any process exists: numpy and einops only, no torch, clock, environment or I/O."""
