"""Candidate policies as ghosts of the live traffic, and that traffic as a trace.

A scheduler only appends one compact record a request to a bounded pipe (`feed.py`, `pipe.py`). Another process
(`process.py`) runs replay's simulators on them, and writes traces.
"""
