"""Training: the loop of a worker, its optimisers, schedules and evaluation, and the oracle."""
