"""Studies: plans of runs, the engine that executes them, and the analysis of their results."""
