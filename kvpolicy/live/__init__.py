"""Talking to a running server about its policy, from outside: plain HTTP, no engine, no third-party package."""
