"""Row-stationary accelerator for convolutions: cycle-accurate simulation, network costs."""
