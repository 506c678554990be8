"""Measuring a subject's decode: modelled device time, wall time and counts, of arms in turn."""
