"""The command `jaxd`: its entry point, and what the commands share; the extension for notebooks."""
