"""Ways to spread one training step over ranks, one module or package for each."""
