"""The judge: gates, their controls, and the verdict. Reads goldens and runs; needs no torch, transformers or ttnn.

How to add a gate: write `oracle/judge/<name>.py` with a class that answers `oracle.judge.gate.Gate`, list it in
`oracle/judge/gates.py`, and plant a fault in its `plants` for each thing it compares. A gate whose control does not fire
turns the ledger red.
"""
