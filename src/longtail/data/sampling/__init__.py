"""The order of samples and random draws, as a pure function of seed and epoch."""
