"""The pieces that read their process, a registry or an installed package (`features.py`)."""

# ruff: noqa: E501  a piece of code is one line

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.generator.features import Edit, Feature, Package, does, swaps


def _variable(*more: Edit, name: str = "V_NN") -> tuple[Edit, ...]:
    """A variable of the environment changes, in the process and between two."""
    return (
        *does(f"os.environ['{name}'] = 'BB'", f"os.environ.pop('{name}', None)"),
        Edit(environment={name: "BB"}),
        Edit(environment={name: None}),
        Edit(environment={"OTHER_NN": "1"}),
        *more,
    )


_OF_ENVIRONMENT: Final = {
    "environ": "int(os.environ['V_NN'])",
    "environ get": "int(os.environ.get('V_NN', '1'))",
    "getenv": "int(os.getenv('V_NN') or 2)",
    "environ in": "('V_NN' in os.environ) * 3",
    "environ alias": "int(environ.get('V_NN', '1')) + int(getenv('V_NN', '2'))",
}
_IN_MODULES: Final = {
    "environ": "K = int(os.getenv('V_NN', '1'))",
    "environ guarded": "try:\n    K = int(os.environ['V_NN'])\nexcept KeyError:\n    K = 7",
    "environ in a function": "def read(): return int(os.getenv('V_NN', '1'))\nK = read()",
    "environ alias": "from os import environ as e\nK = int(e.get('V_NN', '3'))",
    "expandvars": "K = len(os.path.expandvars('$V_NN'))",
    "getattr environ": "K = int(getattr(os, 'environ').get('V_NN', '1'))",
    "whole environ": "K = int(dict(os.environ).get('V_NN', '1'))",
    "argv": "import sys\nK = len(sys.argv) * 10 + len(sys.argv[-1])",
    "cwd": "K = len(os.path.basename(os.getcwd()))",
    "open": "with open(os.path.join(os.path.dirname(__file__), 'data_NN.txt')) as f: K = int(f.read())",
    "pathlib": "import pathlib\nK = int((pathlib.Path(__file__).parent / 'data_NN.txt').read_text())",
    "file exists": "import pathlib\nK = 3 if (pathlib.Path(__file__).parent / 'none_NN.txt').exists() else 4",
    "locale": "import locale\nK = len(str(locale.setlocale(locale.LC_NUMERIC)))",
    "logging": "import logging\nK = logging.getLogger('l_NN').getEffectiveLevel()",
    "decimal": "import decimal\nK = len(str(decimal.Decimal(1) / decimal.Decimal(7)))",
    "recursion limit": "import sys\nK = sys.getrecursionlimit() % 1000",
    "child": "import subprocess, sys\nK = int(subprocess.run(['sh', '-c', 'echo ${V_NN:-5}'],"
    " capture_output=True, text=True).stdout)",
}
_IN_FUNCTIONS: Final = {
    "expandvars": ("len(os.path.expandvars('$V_NN'))", ""),
    "getattr environ": ("int(getattr(os, 'environ').get('V_NN', '1'))", ""),
    "whole environ": ("int(dict(os.environ).get('V_NN', '1'))", ""),
    "argv": ("(len(sys.argv) * 10 + len(sys.argv[-1]))", "import sys"),
    "cwd": ("len(os.path.basename(os.getcwd()))", ""),
    "open": (
        "int(open(DATA_NN).read())",
        "DATA_NN = os.path.join(os.path.dirname(__file__), 'data_NN.txt')",
    ),
    "pathlib": (
        "int(DATA_NN.read_text())",
        "import pathlib\nDATA_NN = pathlib.Path(__file__).parent / 'data_NN.txt'",
    ),
    "file exists": (
        "(3 if os.path.exists(DATA_NN) else 4)",
        "DATA_NN = os.path.join(os.path.dirname(__file__), 'none_NN.txt')",
    ),
    "locale": ("len(str(locale.setlocale(locale.LC_NUMERIC)))", "import locale"),
    "logging": ("logging.getLogger('l_NN').getEffectiveLevel()", "import logging"),
    "logging enabled": (
        "(3 if logging.getLogger('l_NN').isEnabledFor(20) else 5)",
        "import logging",
    ),
    "logger level": ("LOG_NN.level", "import logging\nLOG_NN = logging.getLogger('l_NN')"),
    "decimal": ("len(str(decimal.Decimal(1) / decimal.Decimal(7)))", "import decimal"),
    "decimal context": ("decimal.getcontext().prec", "import decimal"),
    "recursion limit": ("(sys.getrecursionlimit() % 1000)", "import sys"),
    "child": (
        "int(subprocess.run(['sh', '-c', 'echo ${V_NN:-5}'], capture_output=True, text=True).stdout)",
        "import subprocess",
    ),
}
_DATA: Final[Mapping[str, Mapping[str, str]]] = {
    "open": {"data_NN.txt": "AA"},
    "pathlib": {"data_NN.txt": "AA"},
}
_FILE: Final = (Edit(write={"data_NN.txt": "BB"}), Edit(write={"data_NN.txt": "BB5"}))
_FROM_OUTSIDE: Final[Mapping[str, tuple[Edit, ...]]] = {
    "argv": (Edit(argv=("prog", "--k", "BB" * 4)), *does("import sys; sys.argv.append('AABB')")),
    "cwd": (Edit(folder="wd_longer"), Edit(folder="wd"), *does("os.chdir('..')")),
    "open": _FILE,
    "pathlib": _FILE,
    "file exists": (Edit(write={"none_NN.txt": "new"}),),
    "locale": does("import locale; locale.setlocale(locale.LC_NUMERIC, 'C.UTF-8')"),
    "logging": does(
        "import logging; logging.getLogger('l_NN').setLevel(AA)",
        "import logging; logging.getLogger().setLevel(40)",
    ),
    "logging enabled": does(
        "import logging; logging.getLogger('l_NN').setLevel(AA)",
        "import logging; logging.disable(30)",
    ),
    "logger level": does("import logging; logging.getLogger('l_NN').setLevel(AA)"),
    "decimal": does("import decimal; decimal.getcontext().prec = AA"),
    "decimal context": does("import decimal; decimal.getcontext().prec = AA"),
    "recursion limit": does("import sys; sys.setrecursionlimit(3000 + AA)"),
}


def _edits(kind: str) -> tuple[Edit, ...]:
    return _FROM_OUTSIDE.get(kind) or _variable()


def _ambient() -> dict[str, Feature]:
    made: dict[str, Feature] = {}
    for name, term in _OF_ENVIRONMENT.items():
        # a loaded module that holds the environment itself is refused where a late one imports it whole
        early = name == "environ alias"
        top = "import os\nfrom os import environ, getenv" if early else "import os"
        once = f"{top}\n@functools.lru_cache(None)\ndef once_NN(): return {term}"
        for way, lines, read in (("", top, term), (", cached helper", once, "once_NN()")):
            made[f"{name}{way}"] = Feature(
                lines, term=read, environment={"V_NN": "AA"}, edits=_variable(), early=early
            )
    for kind, (term, top) in _IN_FUNCTIONS.items():
        made[f"{kind} in a function"] = Feature(
            f"import os\n{top}",
            term=term,
            edits=_edits(kind),
            files=_DATA.get(kind, {}),
            environment={"V_NN": "AA"},
            kind=f"{kind} in a function",
            early=True,
        )
    ways = {
        "late": ("    from PKG import late_NN", "late_NN.K"),
        "from late": ("    from PKG.late_NN import K as k_NN", "k_NN"),
        "deep late": ("    from PKG.deep_NN import value", "value()"),
        "late function": ("    import PKG.late_NN", "PKG.late_NN.value()"),
        "read when called": ("    from PKG import late_NN", "late_NN.read()"),
    }
    for kind, text in _IN_MODULES.items():
        for way, (inside, term) in ways.items():
            body = text.replace("\n", "\n    ")
            late = f"import os\n{text}\ndef value(): return K\n"
            if way == "read when called":
                late = "import os\nK = 1\ndef value(): return K\ndef read():\n"
                late += f"    {body}\n    return K + value()\n"
            deep = {"deep_NN.py": "from .late_NN import value\n"} if way == "deep late" else {}
            made[f"{kind} in a module, {way}"] = Feature(
                inside=inside,
                term=term,
                files={"late_NN.py": late, **deep, **_DATA.get(kind, {})},
                edits=(
                    *_edits(kind),
                    *swaps(("def value(): return K", "def value(): return K + 1")),
                ),
                environment={"V_NN": "AA"},
                kind=""
                if kind.startswith("environ") or (kind == "argv")
                else f"{kind} in a module",
            )
        made[f"{kind}, imported at the top"] = Feature(
            "from PKG import late_NN",
            term="late_NN.K",
            files={"late_NN.py": f"import os\n{text}\n", **_DATA.get(kind, {})},
            edits=_edits(kind),
            environment={"V_NN": "AA"},
            early=True,
        )
    return made


THREADS: Final[Mapping[str, Feature]] = {
    "context variable": Feature(
        "import contextvars\nC_NN = contextvars.ContextVar('C_NN', default=AA)",
        term="C_NN.get()",
        edits=does("m.C_NN.set(BB)", "m.C_NN.set(AA + 30)"),
        threads=("module('MOD').C_NN.set(11)", "module('MOD').C_NN.set(22)", ""),
    ),
    "thread local": Feature(
        "import threading\nT_NN = threading.local()",
        term="getattr(T_NN, 'v', AA)",
        edits=does("m.T_NN.v = BB"),
        threads=("module('MOD').T_NN.v = 11", "module('MOD').T_NN.v = 22", ""),
    ),
    "threads": Feature("K_NN = AA", term="K_NN", edits=does("m.K_NN = BB"), threads=("", "", "")),
    "decimal in threads": Feature(
        "import decimal",
        term="len(str(decimal.Decimal(1) / decimal.Decimal(7)))",
        threads=(
            "import decimal; decimal.getcontext().prec = 5",
            "",
            "import decimal; decimal.getcontext().prec = 9",
        ),
        kind="decimal in threads",
    ),
}

REGISTRIES: Final[Mapping[str, Feature]] = {
    "subclasses": Feature(
        "class S_NN: pass\nclass T_NN(S_NN):\n    v = AA",
        term="sum({c.__name__: c.v for c in S_NN.__subclasses__()}.values())",
        edits=does("m.U_NN = type('U', (m.S_NN,), {'v': BB})", "m.T_NN.v = BB"),
        kind="subclasses",
    ),
    "subclasses elsewhere": Feature(
        "from PKG.plugin_NN import T\nfrom PKG.base_NN import S",
        # The last of each name: when the garbage collector takes a class that was replaced is chance.
        term="sum({c.__name__: c.v for c in S.__subclasses__()}.values())",
        files={
            "base_NN.py": "class S: pass\n",
            "plugin_NN.py": "from .base_NN import S\nclass T(S):\n    v = AA\n",
        },
        edits=(*swaps(("v = AA", "v = BB")), *does("m.U_NN = type('U', (m.S,), {'v': BB})")),
        kind="subclasses",
    ),
    "abstract number": Feature(
        "import numbers\nclass P_NN:\n    v = AA\np_NN = P_NN()",
        term="(2 if isinstance(p_NN, numbers.Number) else 5)",
        edits=does("m.numbers.Number.register(m.P_NN)"),
        kind="abstract class of a library",
    ),
    "abstract class": Feature(
        "import abc\nclass A_NN(abc.ABC): pass\nclass P_NN: pass\np_NN = P_NN()",
        term="(2 if isinstance(p_NN, A_NN) else 5)",
        edits=does(
            "m.A_NN.register(m.P_NN)", "m.A_NN.__subclasshook__ = classmethod(lambda c, o: True)"
        ),
        kind="abstract class",
    ),
    "abstract collection": Feature(
        "import collections.abc\nclass P_NN: pass\np_NN = P_NN()",
        term="(2 if isinstance(p_NN, collections.abc.Sized) else 5)",
        edits=does("m.P_NN.__len__ = lambda self: 1", "m.collections.abc.Sized.register(m.P_NN)"),
        kind="abstract class of a library",
    ),
    "dispatch of a library": Feature(
        "import kit_NN\nclass P_NN: pass\np_NN = P_NN()\ndef form_NN(p): return BB",
        term="kit_NN.kind(p_NN)",
        packages=(
            Package(
                "kit_NN",
                "1.0",
                {
                    "kit_NN/__init__.py": "import functools\n@functools.singledispatch\ndef kind(x): return AA\n"
                },
            ),
        ),
        edits=does("m.kit_NN.kind.register(m.P_NN, m.form_NN)"),
        kind="dispatch of a library",
    ),
    "dispatch": Feature(
        "class P_NN: pass\n@functools.singledispatch\ndef kind_NN(x): return AA\np_NN = P_NN()",
        term="kind_NN(p_NN)",
        edits=does(
            "m.kind_NN.register(m.P_NN, lambda p: BB)",
            "m.kind_NN.register(object, lambda p: AA + BB)",
        ),
    ),
    "dispatch elsewhere": Feature(
        "from PKG.base_NN import kind\nfrom PKG import more_NN\np_NN = more_NN.P()",
        term="kind(p_NN)",
        files={
            "base_NN.py": "import functools\n@functools.singledispatch\ndef kind(x): return 1\n",
            "more_NN.py": "from .base_NN import kind\nclass P: pass\n@kind.register\ndef _(x: P): return AA\n",
        },
        edits=does(
            "m.kind.register(int, lambda p: BB)", "m.kind.register(m.more_NN.P, lambda p: BB)"
        ),
    ),
    "dispatch reloaded": Feature(
        "from PKG.base_NN import kind\nfrom PKG import more_NN\np_NN = more_NN.P()",
        term="kind(p_NN)",
        files={
            "base_NN.py": "import functools\n@functools.singledispatch\ndef kind(x): return 1\n",
            "more_NN.py": "from .base_NN import kind\nclass P: pass\n@kind.register\ndef _(x: P): return AA\n",
        },
        edits=swaps(("return AA", "return BB")),
    ),
    "dispatch method": Feature(
        "class D_NN:\n    @functools.singledispatchmethod\n    def k(self, x): return AA\nd_NN = D_NN()",
        term="d_NN.k('a')",
        edits=does(
            "m.D_NN.k.register(str, lambda self, x: BB)",
            "vars(m.D_NN)['k'].dispatcher.register(str, lambda self, x: BB + 1)",
        ),
    ),
    "registered node": Feature(
        "class N_NN:\n    def __init__(self, v): self.v = v\nn_NN = N_NN(AA)",
        inside="    import jax",
        term="sum(v if isinstance(v, int) else 50 for v in jax.tree_util.tree_leaves(n_NN))",
        edits=does(
            "import jax\nif not vars(m.N_NN).get('done'):\n    m.N_NN.done = True\n    jax.tree_util.register_pytree_node(m.N_NN, lambda n: ((n.v, BB), None), lambda a, c: m.N_NN(*c))",
            "m.n_NN.v = BB",
        ),
        kind="registered node",
        jax=True,
    ),
    "registered class": Feature(
        "import jax\n@jax.tree_util.register_pytree_node_class\nclass N_NN:\n    def __init__(self, v): self.v = v\n"
        "    def tree_flatten(self): return (self.v, AA), None\n    @classmethod\n    def tree_unflatten(cls, a, c): return cls(c[0])\nn_NN = N_NN(BB)",
        term="sum(jax.tree_util.tree_leaves(n_NN))",
        edits=does("m.n_NN.v = AA + 9", "m.N_NN.tree_flatten = lambda self: ((AA,), None)"),
        jax=True,
    ),
}

_HIGH: Final = "from low_NN import f\ndef g(x): return f(x) + 1\n"
_LOW: Final = "def f(x): return x * AA\n"
_NEW: Final = "def f(x): return x * BB + 1\n"


def _low(version: str, text: str) -> Package:
    return Package("low_NN", version, {"low_NN/__init__.py": text})


PACKAGES: Final[Mapping[str, Feature]] = {
    "dependency": Feature(
        "import high_NN",
        term="high_NN.g(x)",
        packages=(Package("high_NN", "1.0", {"high_NN/__init__.py": _HIGH}), _low("1.0", _LOW)),
        edits=(
            Edit(install=_low("1.1", _NEW)),
            Edit(install=_low("1.0", _NEW)),
            Edit(install=Package("high_NN", "2.0", {"high_NN/__init__.py": _HIGH + "K = 1\n"})),
        ),
        kind="dependency",
    ),
    "late dependency": Feature(
        "import high_NN",
        term="high_NN.g(x)",
        packages=(
            Package(
                "high_NN",
                "1.0",
                {"high_NN/__init__.py": "def g(x):\n    import low_NN\n    return low_NN.f(x)\n"},
            ),
            _low("1.0", _LOW),
        ),
        edits=(Edit(install=_low("1.1", _NEW)), Edit(install=_low("1.0", _NEW))),
        kind="dependency",
    ),
    "package": Feature(
        "import low_NN",
        term="low_NN.f(x)",
        packages=(_low("1.0", _LOW),),
        edits=(Edit(install=_low("1.1", _NEW)), Edit(install=_low("1.0", _NEW))),
        kind="package",
    ),
    "package in a function": Feature(
        inside="    import low_NN",
        term="low_NN.f(x)",
        packages=(_low("1.0", _LOW),),
        edits=(Edit(install=_low("1.1", _NEW)), Edit(install=_low("1.0", _NEW))),
        kind="package",
    ),
    "package that stays": Feature(
        "import low_NN",
        term="(low_NN.f(x) + low_NN.o.v)",
        packages=(_low("1.0", _LOW + "class C: v = 3\no = C()\n"),),
        edits=does("m.low_NN.f = lambda x: BB", "m.low_NN.o = m.SimpleNamespace(v=BB)"),
        kind="library patched",
    ),
    "object of a package": Feature(
        "import low_NN",
        term="low_NN.o.v",
        packages=(_low("1.0", "class C: v = 3\no = C()\n"),),
        edits=does("m.low_NN.o.v = BB", "m.low_NN.C.v = BB"),
        kind="object of a package",
    ),
}

AMBIENT: Final[Mapping[str, Feature]] = _ambient()
