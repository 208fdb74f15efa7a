"""A trained model in integers: traced, calibrated, simulated, and run without a single float."""
