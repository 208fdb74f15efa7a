"""Studies such as compare, scale, sweep and tune: their plans of training runs, the engine, and the analysis."""
