"""The project's own commands: the demo, the complete test run, and the environment that both build. Not packaged."""
