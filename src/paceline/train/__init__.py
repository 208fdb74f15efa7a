"""Training in a worker process: the training loop, optimisers, schedules, evaluation, and the reference for results."""
