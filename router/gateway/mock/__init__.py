"""A lockstep mock fleet: engines that speak as vLLM does and compute nothing, for tests and trials."""
