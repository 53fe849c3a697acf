"""Policies on running servers: what a change would do (:mod:`.plan`), swapping without a restart, and asking a server.

Adapters drive the server's half (:mod:`.swap`); the command line is the client's (:mod:`.client`), plain HTTP without
third-party packages. No engine is imported.
"""
