"""A project and its processes, run with plain jax and then with jaxd, which has to say the same."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

WORLD: dict[str, Any] = {}


def answers(calls: list[dict[str, Any]], how: str) -> list[str]:
    """What each call gives, one for each thread."""
    import numpy as np

    jit: Any = importlib.import_module("jax" if how == "jax" else "jaxd")
    jit = jit.jit if how == "jax" else jit.persistent_call
    found: list[str] = []

    def one(call: dict[str, Any], code: str) -> None:
        execute(code)
        function, module = call["function"], importlib.import_module(call["function"])
        entry = module.entry
        static = (4, *(getattr(module, name) for name in call.get("statics", ())))
        try:
            if how == "jax":  # which would give one thread what it traced for another
                importlib.import_module("jax").clear_caches()
            if how == "jax" or (function, entry) not in made:
                made[function, entry] = jit(entry, static_argnums=0)
            result = made[function, entry](static if static[1:] else 4, np.arange(3, dtype="i4"))
            found.append(f"{function} {np.asarray(result)}")
        except Exception as error:  # noqa: BLE001  it is what the call gives
            found.append(f"{function} {type(error).__name__}: {error}")

    for call in calls:
        for code in call["threads"] or [""]:
            thread = threading.Thread(target=one, args=(call, code))
            thread.start() if call["threads"] else one(call, "")
            thread.join() if call["threads"] else None
    return found


made: dict[Any, Any] = {}


def execute(code: str) -> None:
    """Runs an edit."""
    names = {"again": again, "module": importlib.import_module, "os": os, "sys": sys}
    exec(code, {**names, "__name__": "__main__"})


def again(name: str) -> None:
    """Reloads a module, where it is imported."""
    if name in sys.modules:
        importlib.reload(sys.modules[name])


def in_fork(calls: list[dict[str, Any]]) -> list[str]:
    """What plain jax says in a fork of this process, of which nothing is left."""
    reader, writer = os.pipe()
    if not os.fork():
        os.write(writer, json.dumps(answers(calls, "jax")).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        found: list[str] = json.load(file)
    os.wait()
    return found


def write(folder: Path, files: dict[str, str]) -> None:
    """Files below a folder."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def process(number: int, folder: Path, how: str) -> None:
    """One of the processes."""
    sys.dont_write_bytecode = True
    each = WORLD["processes"][number]
    sys.argv[:] = each["argv"]
    os.chdir(folder / each["folder"])
    sys.path.insert(0, str(folder))
    for act in each["acts"]:
        write(folder, act["writes"])
        importlib.invalidate_caches()
        for code in act["edits"]:
            execute(code)
        for call in act["calls"]:
            importlib.import_module(call["function"])
        for line in in_fork(act["calls"]) if how == "jax" else answers(act["calls"], how):
            print("  ", line, flush=True)


def install(site: Path, packages: list[dict[str, Any]]) -> None:
    """As pip would: the files, and a RECORD of them."""
    for package in packages:
        for old in site.glob(f"{package['name']}-*.dist-info"):
            subprocess.run(["rm", "-r", str(old)], check=True)
        info = f"{package['name']}-{package['version']}.dist-info"
        record = "".join(
            f"{path},sha256={abs(hash(text))},{len(text)}\n"
            for path, text in package["files"].items()
        )
        metadata = (
            f"Metadata-Version: 2.1\nName: {package['name']}\nVersion: {package['version']}\n"
        )
        write(site, package["files"] | {f"{info}/RECORD": record, f"{info}/METADATA": metadata})


def main() -> None:
    """Prints what both say."""
    for how in ("jax", "jaxd"):
        print(how)
        with tempfile.TemporaryDirectory(dir="/tmp", prefix="g-") as name:
            root = Path(name)
            write(root, WORLD["files"])
            for folder in ("wd", "wd_longer", "site-packages"):
                (root / folder).mkdir()
            install(root / "site-packages", WORLD["installs"])
            paths = [str(root / "site-packages"), os.environ.get("PYTHONPATH", "")]
            base = os.environ | {
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "XDG_RUNTIME_DIR": name,
                "XDG_CACHE_HOME": name,
                "XDG_CONFIG_HOME": name,
                "JAXD_FALLBACK": "error",
                "JAX_PLATFORMS": "cpu",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            for number, each in enumerate(WORLD["processes"]):
                install(root / "site-packages", each["installs"])
                more = {key: text for key, text in each["environment"].items() if text is not None}
                print(f" process {number}", flush=True)
                subprocess.run(
                    [sys.executable, __file__, str(number), name, how], env=base | more, check=False
                )
            if how == "jaxd":
                subprocess.run([sys.executable, "-m", "jaxd.cli", "stop"], env=base, check=False)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        process(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    else:
        main()
