"""Configurations of libraries in fresh processes: what a function does not read builds nothing."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from jaxd import Client
from tests.end_to_end.counting import costs
from tests.live_server import LiveServer, run_client

PROGRAM = """
import json, os, sys
import numpy as np
from jaxd import connect
address, lr, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
os.environ["CONFIGURED"] = str(lr)
{config}
def width(config): return config.model["width"]
def step(x):
    model = cfg.model
    return x * {read} + model["width"] + width(cfg)
with connect(address) as client:
    print(json.dumps(float(client.persistent_call(step)(np.float32(2)))))
"""
MODEL = '"model": {"width": 3, "name": str(seed)}'
CONFIGS = {
    "absl": (
        """
from absl import flags
from types import SimpleNamespace
LR, SEED = flags.DEFINE_float("lr", 0.5, ""), flags.DEFINE_integer("seed", 1, "")
flags.FLAGS(["p", f"--lr={lr}", f"--seed={seed}"])
cfg = SimpleNamespace(model={"width": 3, "name": str(seed)}, seed=seed)
""",
        "(LR.value + getattr(flags.FLAGS, 'lr')) / 2",
    ),
    "ml_collections": (
        f"""
from ml_collections import ConfigDict
cfg = ConfigDict({{"lr": lr, "seed": seed, {MODEL}}})
cfg.twice = cfg.get_ref("lr") * 2
""",
        "cfg.twice / 2",
    ),
    "omegaconf": (
        f"""
from omegaconf import OmegaConf
cfg = OmegaConf.create({{"lr": "${{oc.decode:${{oc.env:CONFIGURED,7}}}}", "seed": seed, {MODEL}}})
""",
        "cfg.lr",
    ),
}


@pytest.mark.slow
@pytest.mark.counts_builds
@pytest.mark.parametrize(
    "library",
    [pytest.param(name, marks=[pytest.mark.soak] * (name != "omegaconf")) for name in CONFIGS],
)
def test_only_what_is_read_builds(
    library: str, live: LiveServer, client: Client, runtime: Path
) -> None:
    """Another seed and another name do not, another rate does, also one of the environment."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    config, read = CONFIGS[library]
    program = PROGRAM.replace("{config}", config).replace("{read}", read)

    def run(lr: float, seed: int) -> tuple[Any, int]:
        with costs(client) as spent:
            done = run_client(
                program, live.unix, str(lr), str(seed), environment=dict(live.environment)
            )
        assert done.returncode == 0, done.stderr
        assert "SkewWarning" not in done.stderr
        return json.loads(done.stdout), spent.get("traces", 0)

    assert run(0.5, 1) == (7.0, 1)
    assert run(0.5, 2) == (7.0, 0)
    assert run(1.5, 2) == (9.0, 1)
    assert run(0.5, 3) == (7.0, 0)
