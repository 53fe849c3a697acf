"""Decode attention over shared prefixes: what it costs, flat and as a cascade, and which running requests share one.

No engine and no tensors; the arithmetic itself is `kvpolicy/kernels/cascade.py`. Nothing here runs in a server yet:
`check --traffic` asks the cost model.
"""
