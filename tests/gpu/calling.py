"""Calls programs in this process: `python -m tests.gpu.calling jax|jaxd FILE NAME …`.

Writes the results into FILE (.npz) and prints, as JSON by name, what each cost the server, or the
error.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import numpy as np

from tests.gpu.programs import PROGRAMS

COUNTED: Final = ("traces", "lowers", "compiles", "executable_loads")


def _decorate_and_count(how: str) -> tuple[Any, Any]:
    if how == "jax":
        import jax

        return jax.jit, lambda: dict.fromkeys(COUNTED, 0)
    import jaxd

    client = jaxd.connect()
    return client.persistent_call, lambda: client.statistics()._asdict()


def main() -> None:
    """One after another; an error of one does not keep the others from being called."""
    how, file, *names = sys.argv[1:]
    decorate, count = _decorate_and_count(how)
    results: dict[str, Any] = {}
    told: dict[str, Any] = {}
    for name in names:
        program = PROGRAMS[name]
        before = count()
        try:
            results[name] = np.asarray(decorate(program.call)(*program.arguments()))
        except Exception as error:  # noqa: BLE001  it is what the test is told
            told[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
            continue
        after = count()
        told[name] = {each: after[each] - before[each] for each in COUNTED}
    np.savez(file, **results)
    light = how == "jax" or "jax" not in sys.modules
    print(json.dumps({"programs": told, "light": light}))


if __name__ == "__main__":
    main()
