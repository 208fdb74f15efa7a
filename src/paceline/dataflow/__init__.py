"""Row-stationary accelerator for convolutions: cycle-accurate simulation, and costs of whole networks."""
