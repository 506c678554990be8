"""The real runtime, ttnn 0.81.1, behind `protocol.Device`, without torch.

`runtime` imports it and opens a card, `held` says how tensors lie in it, `transfers` moves their bytes, `guards` refuses what
would crash it, `device` and `ops` are the protocol. Nothing here is imported unless the device is asked for.
"""
