"""Routed experts on a device that cannot hold them all: slots, the fills and drains that serve them, and what compute uses.

`pool` is what the decoder asks; `slots` and `policy` say who lies where, `streaming` fills and verifies against `shadow`,
`dequant` and `memo` make and keep the computing copies, `epoch` says whether any slot's content has changed.
"""
