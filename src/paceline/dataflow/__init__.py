"""A row-stationary accelerator: values cycle by cycle for one convolution, counts and energy for whole networks."""
