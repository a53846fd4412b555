"""The subcommands of `asyncrl`, one module each, imported only when asked for."""
