"""The programs of the corpus, as data: whose, at which version, and how they are made short."""

from __future__ import annotations

from tests.corpus.places import Project
from tests.corpus.running import Program

OURS = Project("jaxd's own examples")
JAX = Project("jax", repository="jax-ml/jax", commit="cec06d116c")
JRAPH = Project("jraph", ("jraph==0.0.6.dev0",), "google-deepmind/jraph", "51f5990")
OPTAX = Project("optax", (), "google-deepmind/optax", "2edbcbe2")
EQUINOX = Project("equinox", (), "patrick-kidger/equinox", "9336d82")
NUMPYRO = Project("numpyro", ("scikit-learn==1.8.0",), "pyro-ppl/numpyro", "0b935d48")

PROGRAMS: tuple[Program, ...] = (
    Program(OURS, "examples/ecosystem/optax_only.py"),
    Program(OURS, "examples/ecosystem/equinox_modules.py"),
    Program(JAX, "examples/advi.py"),
    Program(JRAPH, "jraph/examples/basic.py"),
    Program(JRAPH, "jraph/examples/game_of_life.py"),
    Program(JRAPH, "jraph/examples/zacharys_karate_club.py"),
    Program(JRAPH, "jraph/examples/lstm.py"),
    Program(JRAPH, "jraph/examples/hamiltonian_graph_network.py"),
)
