"""Row-stationary accelerator: cycle-accurate simulation of a convolution, and access and energy counts of networks."""
