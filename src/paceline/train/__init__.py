"""Training in a worker process: training loop, optimisers, schedules, evaluation and the oracle (reference result)."""
