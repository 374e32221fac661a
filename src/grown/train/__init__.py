"""The training loop, its schedule and batches, evaluation, and the statistics of norms."""
