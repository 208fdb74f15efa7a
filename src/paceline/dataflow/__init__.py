"""Row-stationary accelerator for convolutions, like Eyeriss: cycle-accurate simulation, and cost of networks."""
