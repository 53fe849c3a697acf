"""Replay: real traffic under a policy, before a server is restarted. Runs the very objects that adapters install."""
