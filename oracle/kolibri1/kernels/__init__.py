"""The default arm's arithmetic: compiled kernels whose bits depend on their operands alone."""
