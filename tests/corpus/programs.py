"""The programs of the corpus, as data: whose, at which version, and how they are made short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tests.corpus.places import Project
from tests.corpus.running import Program

_PLOTS = ("matplotlib==3.11.2",)

JAX = Project("jax", _PLOTS, "jax-ml/jax", "cec06d116c05f0d52adfceee3d3b730fdbcb0ce5")
FLAX = Project("flax", _PLOTS, "google/flax", "18f8f311c275d57f46d95e41b15aa97b454754c0")
OPTAX = Project(
    "optax", _PLOTS, "google-deepmind/optax", "2edbcbe2390da13983b92cbef94ac0460ecde1c5"
)
EQUINOX = Project(
    "equinox",
    ("matplotlib==3.11.2", "einops==0.8.2"),
    "patrick-kidger/equinox",
    "9336d820b2ef66b360fc6cb3611b3da5cefbb14d",
)
DIFFRAX = Project(
    "diffrax", _PLOTS, "patrick-kidger/diffrax", "5ea5fcb05058bd22548300a10ea5ef5ce7fb75bb"
)
LINEAX = Project("lineax", (), "patrick-kidger/lineax", "2f0e083d9f0a3ae3329648410ed32e29f8cc9fb4")
OPTIMISTIX = Project(
    "optimistix", _PLOTS, "patrick-kidger/optimistix", "6415ab15480ebdb7386e17850105ce0dba6786ec"
)
NUMPYRO = Project(
    "numpyro",
    ("numpyro==0.21.0", "matplotlib==3.11.2", "pandas==3.1.1", "scikit-learn==1.9.1"),
    "pyro-ppl/numpyro",
    "0b935d488056ae1775b4ab05cbe2812f51f21a4f",
)
HAIKU = Project(
    "haiku",
    ("rlax==0.1.9", "bsuite==0.3.6"),
    "google-deepmind/dm-haiku",
    "f4d858a5cbb29140855d68f81f5fd625e078a5ae",
)
RLAX = Project(
    "rlax",
    ("rlax==0.1.9", "bsuite==0.3.6", "dm-haiku==0.0.17"),
    "google-deepmind/rlax",
    "4c5d25b2609879d321f5a432cdf88165574e57a7",
)
JRAPH = Project(
    "jraph",
    ("jraph==0.0.6.dev0", "frozendict==2.5.1", "matplotlib==3.11.2"),
    "google-deepmind/jraph",
    "51f5990104f7374492f8f3ea1cbc47feb411c69c",
)
MCTX = Project(
    "mctx",
    ("mctx==0.0.71",),
    "google-deepmind/mctx",
    "b53073fd5035618228a717e29254e36ceb6f0645",
)
DISTRAX = Project(
    "distrax",
    ("distrax==0.1.9",),
    "google-deepmind/distrax",
    "f51bffcf9094d269a0be8678762dd2849833c8b7",
)
E3NN = Project(
    "e3nn-jax",
    ("e3nn-jax==0.21.0", "jraph==0.0.6.dev0", "tqdm==4.70.1", "matplotlib==3.11.2"),
    "e3nn/e3nn-jax",
    "04e761c8e9a42c339cc712fb8b9af85ddd618eab",
)
JAX_MD = Project(
    "jax-md",
    ("jax-md==0.2.29", "matplotlib==3.11.2", "seaborn==0.13.2", "pandas==3.1.1"),
    "jax-md/jax-md",
    "a41c7d19f6468f4e5263c32c12c9ed6cba26ebff",
)
PUREJAXRL = Project(
    "PureJaxRL with gymnax",
    ("gymnax==0.0.9", "brax==0.14.2", "distrax==0.1.9"),
    "luchris429/purejaxrl",
    "31756b197773a52db763fdbe6d635e4b46522a73",
)
EVOSAX = Project(
    "evosax",
    ("evosax==0.3.2", "matplotlib==3.11.2"),
    "RobertTLange/evosax",
    "d4b4127708cb2cd0cc906b910ddcd091013153a9",
)
FLOWJAX = Project(
    "flowjax",
    ("flowjax==17.2.0", "matplotlib==3.11.2"),
    "danielward27/flowjax",
    "cabcb42bcfdd12baa16c020078ec5e097efeaac0",
)
GPJAX = Project(
    "GPJax",
    ("gpjax==1.0.0", "matplotlib==3.11.2", "pandas==3.1.1", "scikit-learn==1.9.1"),
    "JaxGaussianProcesses/GPJax",
    "046d07a97a94b5aac67f58c8b1fa3828e2a37e40",
)
JAXOPT = Project(
    "jaxopt",
    ("jaxopt==0.8.5", "matplotlib==3.11.2", "scikit-learn==1.9.1"),
    "google/jaxopt",
    "2de13bf01fd29e22862236a0d869f2b14e1629d4",
)
DYNAMAX = Project(
    "dynamax",
    ("dynamax==1.0.3", "matplotlib==3.11.2", "seaborn==0.13.2"),
    "probml/dynamax",
    "cfb005fa18678fc1b91d03724d77b442312e1e3b",
)
KERAS = Project(
    "keras", ("keras==3.15.1",), "keras-team/keras", "3422977a5e38fb2f7709aaa9a08e47f0c43d0f60"
)
EVOJAX = Project(
    "evojax", ("evojax==0.2.17",), "google/evojax", "acf5252475e4fbf47e0e3f7994c03de11dd3c4ca"
)

_DIGITS = "MNIST is not to be had offline: the digits of scikit-learn, enlarged, stand for it"
_TOY = "examples/nnx_toy_examples/"
_MCMC = ("--num-samples", "100", "--num-warmup", "100")
_NOTEBOOK = "the code cells of the notebook"
_EIGHT_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}

_RLAX = """
import sys
import examples.experiment, rlax
sys.modules["rlax.examples"] = rlax.examples = examples
sys.path.insert(0, examples.__path__[0])
import {name} as program
from absl import app
app.run(program.main)
"""

_PPO = """
import sys, types
import jax
sys.modules["navix"] = types.ModuleType("navix")
import ppo

config = {"LR": 2.5e-4, "NUM_ENVS": 4, "NUM_STEPS": 128, "TOTAL_TIMESTEPS": 2e4,
          "UPDATE_EPOCHS": 4, "NUM_MINIBATCHES": 4, "GAMMA": 0.99, "GAE_LAMBDA": 0.95,
          "CLIP_EPS": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5,
          "ACTIVATION": "tanh", "ENV_NAME": "CartPole-v1",
          "ANNEAL_LR": True, "DEBUG": False}
train = jax.jit(ppo.make_train(config))
out = train(jax.random.PRNGKey(30))
print(out["metrics"]["returned_episode_returns"].mean(-1).reshape(-1)[-5:])
"""


def _files(
    project: Project,
    folder: str,
    files: str,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    path: tuple[str, ...] = (),
    packages: tuple[str, ...] = (),
    note: str = "",
) -> tuple[Program, ...]:
    """A program for each of the files, which are names in a folder with blanks between them."""
    given = dict(environment or {})
    return tuple(
        Program(project, f"{folder}{file}", arguments, given, path, packages, note=note, name=file)
        for file in files.split()
    )


PROGRAMS: Final[tuple[Program, ...]] = (
    *_files(
        JRAPH,
        "jraph/examples/",
        "basic.py game_of_life.py zacharys_karate_club.py sat.py",
    ),
    *_files(
        JAX,
        "examples/",
        "mnist_classifier_fromscratch.py mnist_classifier.py mnist_vae.py",
        packages=("examples",),
        note=_DIGITS,
    ),
    *_files(JAX, "examples/", "advi.py"),
    *_files(
        JAX, "examples/", "spmd_mnist_classifier_fromscratch.py", path=("examples",), note=_DIGITS
    ),
    *_files(MCTX, "examples/", "policy_improvement_demo.py"),
    *_files(NUMPYRO, "examples/", "minipyro.py", ("-f",)),
    *_files(
        NUMPYRO,
        "examples/",
        "ar2.py bnn.py gp.py var2.py funnel.py",
        _MCMC,
        note="100 samples after 100 steps of warm-up",
    ),
    *_files(E3NN, "examples/", "tetris_point.py irreps_array.py tetris_voxel.py"),
    Program(
        PUREJAXRL,
        "purejaxrl/ppo.py",
        path=("purejaxrl",),
        launcher=_PPO,
        note="20,000 steps; started from a file that imports it, without navix",
        name="ppo.py",
    ),
    *(
        replace(program, launcher=_RLAX.format(name=program.title[:-3]))
        for program in _files(
            RLAX,
            "examples/",
            "simple_dqn.py online_q_learning.py pop_art.py online_q_lambda.py",
            ("--train_episodes=30", "--eval_episodes=10", "--evaluate_every=10"),
            packages=("examples",),
            note="30 episodes; started from a file that calls its folder rlax.examples",
        )
    ),
    *_files(HAIKU, "examples/", "impala_lite.py"),
    *_files(
        FLAX,
        _TOY,
        "02_lifted_transforms.py 03_train_state.py 06_scan_over_layers.py 09_parameter_surgery.py",
    ),
    *_files(
        FLAX,
        _TOY,
        "10_fsdp_and_optimizer.py",
        environment=_EIGHT_DEVICES,
        note="on eight devices that are none, and so is its server",
    ),
    *_files(DISTRAX, "examples/", "hmm.py"),
    *_files(EVOSAX, "examples/", "learned_sphere.py"),
    *_files(EVOSAX, "examples/", "00_getting_started.ipynb", note=_NOTEBOOK),
    *_files(
        EQUINOX,
        "docs/examples/",
        "frozen_layer.ipynb train_rnn.ipynb stateful.ipynb init_apply.ipynb",
        note=_NOTEBOOK,
    ),
    *_files(
        DIFFRAX,
        "docs/examples/",
        "neural_ode.ipynb hessian.ipynb coupled_odes.ipynb forcing.ipynb stiff_ode.ipynb "
        "steady_state.ipynb neural_cde.ipynb",
        note=_NOTEBOOK,
    ),
    *_files(
        OPTAX,
        "examples/",
        "lbfgs.ipynb meta_learning.ipynb perturbations.ipynb flax_example.ipynb "
        "freezing_parameters.ipynb gradient_accumulation.ipynb",
        note=_NOTEBOOK,
    ),
    *_files(
        LINEAX,
        "docs/examples/",
        "classical_solve.ipynb operators.ipynb",
        note=_NOTEBOOK,
    ),
    *_files(
        OPTIMISTIX,
        "docs/examples/",
        "interactive.ipynb optimise_diffeq.ipynb",
        note=_NOTEBOOK,
    ),
    *_files(
        JAX_MD,
        "examples/",
        "nve_simulation.py nvt_simulation.py fire_minimization.py nve_neighbor_list.py",
        environment={"READTHEDOCS": "1"},
        note="as for its documentation: `READTHEDOCS=1`",
    ),
    *_files(
        JAXOPT,
        "examples/",
        "fixed_point/plot_picard_ode.py fixed_point/plot_anderson_accelerate_gd.py "
        "implicit_diff/lasso_implicit_diff.py implicit_diff/ridge_reg_implicit_diff.py "
        "constrained/nmf.py",
    ),
    *_files(
        DYNAMAX,
        "docs/notebooks/",
        "hmm/casino_hmm_inference.ipynb hmm/gaussian_hmm.ipynb "
        "linear_gaussian_ssm/kf_tracking.ipynb nonlinear_gaussian_ssm/ekf_ukf_pendulum.ipynb",
        note=_NOTEBOOK,
    ),
    *_files(
        NUMPYRO,
        "examples/",
        "hmm.py holt_winters.py neutra.py sparse_regression.py thompson_sampling.py "
        "zero_inflated_poisson.py proportion_test.py horseshoe_regression.py dais_demo.py",
        _MCMC,
    ),
    *_files(
        KERAS,
        "examples/",
        "demo_custom_jax_workflow.py demo_functional.py demo_subclass.py "
        "demo_custom_layer_backend_agnostic.py",
        environment={"KERAS_BACKEND": "jax"},
    ),
    Program(
        EVOJAX,
        "examples/train_cartpole.py",
        ("--max-iter", "20", "--test-interval", "10", "--pop-size", "16", "--num-tests", "4"),
        note="20 iterations",
        name="train_cartpole.py",
    ),
)

QUICK: Final[tuple[Program, ...]] = _files(
    Project("programs as people write them"),
    "tests/corpus/quick/",
    "linen_train.py nnx_train.py equinox_train.py numpyro_inference.py rollouts.py",
)
"""What needs nothing that is not installed for the tests."""
