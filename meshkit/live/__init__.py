"""What needs processes: process groups, and the mesh that holds them."""
