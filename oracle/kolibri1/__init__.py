"""Kolibri-1: its config, its on-disk checkpoint, and the reference forward pass.

`config` and `checkpoint` are free of torch and hold no arithmetic; an implementation under test may use them.
"""
