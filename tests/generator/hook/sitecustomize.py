"""Python imports this when it starts with this folder on its path: a server loses a mechanism."""

import os

if names := os.environ.get("JAXD_GENERATOR_WITHOUT"):
    from tests.generator.mechanisms import switch_off

    for name in names.split(","):
        switch_off(name, "server")
