"""Goldens: what the reference made, and everything needed to judge by it. Reading one needs no torch; making one does."""
