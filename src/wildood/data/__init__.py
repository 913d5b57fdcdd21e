"""Files and arrays in, batches out: the input spec, sources, the simulated wild mixture, samplers."""
