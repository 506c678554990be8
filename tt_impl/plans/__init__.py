"""Plans: what a decoder would put where, to the byte, from a config alone. No device is opened and no tensor is read."""
