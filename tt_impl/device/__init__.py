"""Devices: `protocol` is what the decoder needs, `sim` is a Blackhole in numpy."""
