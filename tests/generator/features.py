"""What a random function is made of, and how each piece of it may change.

In texts, `NN` is a suffix that is nowhere else, `AA` and `BB` are two numbers, `PKG` is the package
and `MOD` the module that the piece stands in. An edit need not change the result: what it does, plain
jax says.
"""

# ruff: noqa: E501  a piece of code is one line

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.identity.random_projects import ANYWHERE, PIECES

Swap = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Package:
    """An installed distribution: its name, with `NN`, its version, its files."""

    name: str
    version: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Edit:
    """One change.

    Attributes:
        code: what the running process does; `m` is the module of the piece.
        swap: of text in one of the files of the piece: on disk, with a reload or a new process.
        environment, argv, folder: what the next process is started with.
        write: files of the package, of which there may be none yet.
        install: a distribution, put in the place of the one by that name, between two processes.
    """

    code: str = ""
    swap: Swap | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    folder: str = ""
    write: Mapping[str, str] = field(default_factory=dict)
    install: Package | None = None

    @property
    def is_for_processes(self) -> bool:
        """Whether a process has to be started to see it."""
        return not (self.code or self.swap or self.write)


@dataclass(frozen=True, slots=True)
class Feature:
    """Some lines of a module.

    Attributes:
        top: lines at its top.
        inside: lines in the function, before its `return`.
        term: an expression over these and `x`, an integer.
        edits: what may happen to it.
        files: modules and other files beside it, by their path in the package.
        packages: what is installed for it.
        environment: of the first process.
        static: a global that is passed as a static argument; the term stands in the function that is
            called, and reads it by this name.
        threads: of how many threads it is called at once, each of which first runs one of these.
        kind: what it reads, by the names of `kinds.py`; empty for what has always to work.
        jax: whether the client has to have jax.
        early: whether it has to stand in a module that is imported before the first call.
    """

    top: str = ""
    inside: str = ""
    term: str = "0"
    edits: tuple[Edit, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[Package, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    static: str = ""
    threads: tuple[str, ...] = ()
    kind: str = ""
    jax: bool = False
    early: bool = False


def does(*codes: str) -> tuple[Edit, ...]:
    """Edits of the running process."""
    return tuple(Edit(code=code) for code in codes)


def swaps(*pairs: Swap) -> tuple[Edit, ...]:
    """Edits of text."""
    return tuple(Edit(swap=pair) for pair in pairs)


_CODE: Final = {
    "constant": does("m.K = AA", "del m.K; m.K = BB", "m.K = float(AA)"),
    "dict": does("m.CONFIG['used'] = AA", "m.CONFIG = {'used': BB}", "m.CONFIG['unused'] = AA"),
    "namespace": does(
        "m.ARGS.lr = AA", "m.ARGS.name = 'third'", "m.ARGS = m.SimpleNamespace(lr=BB)"
    ),
    "class": does(
        "m.Model.run = lambda self, x: x * AA",
        "m.Base.level = BB",
        "m.Model.width = property(lambda self: AA)",
        "m.Base.__getattribute__ = lambda self, name: BB if name == 'width' else"
        " object.__getattribute__(self, name)",
        "m.Base.__getattr__ = lambda self, name: AA",
        "m.Model = type('Model', (m.Model,), {'width': BB})",
        "m.Model.__new__ = lambda cls: object.__new__(m.Base if AA > 9 else cls)",
        "m.Model.__init__ = lambda self: vars(self).update(width=AA)",
        "m.Model.__bases__ = (type('Other', (m.Base,), {'level': AA, 'width': 1}),)",
    ),
    "defaults": does(
        "m.defaults.__defaults__ = (AA,)",
        "m.defaults.__kwdefaults__ = {'b': BB}",
        "m.defaults.__kwdefaults__['b'] = AA",
        "m.defaults.__code__ = (lambda x, a=4, *, b=6: x + a * b).__code__",
        "m.defaults = lambda x: x + AA",
    ),
    "closure": does(
        "m.closed = m.make(AA)",
        "m.closed.__closure__[0].cell_contents = BB",
    ),
    "decorator": does(
        "m.decorated = m.more(AA)(m.decorated)", "m.decorated = m.decorated.__wrapped__"
    ),
    "tuple": does("m.ORDER = (AA, 1)", "m.ORDER = [BB, 1]"),
    "partial": does(
        "m.partial = m.functools.partial(m.scaled, AA)",
        "m.partial.keywords.update(by=1) if AA > 9 else 0",
    ),
    "array": does(
        "m.ARRAY[0] = AA", "m.ARRAY = m.ARRAY.astype('f4')", "m.ARRAY.resize(2, refcheck=False)"
    ),
    "table": does(
        "m.TABLE['f'] = m.TABLE['g']",
        "m.TABLE['f'].__defaults__ = None",
        "m.TABLE.clear(); m.TABLE['f'] = abs",
    ),
    "bound": does(
        "m.bound.__self__.by = AA",
        "m.Adder.add = lambda self, x: x - BB",
        "m.bound = m.Adder(AA, 's').add",
    ),
    "super": does(
        "m.child.size = AA",
        "m.Parent.run = lambda self, x: BB",
        "m.child.__class__ = type('C', (m.Child,), {'run': lambda self, x: AA})",
    ),
    "dataclass": does(
        "m.Data.__init__.__defaults__ = (AA, BB)", "m.Data.total = lambda self: self.a"
    ),
    "alias": does("m.OPTIONS.v = AA", "m.OPTIONS = m.SimpleNamespace(v=BB)"),
    "generator": does("m.STEP = AA"),
    "cached": does(
        "m.cached = m.cached.__wrapped__", "m.cached = m.functools.lru_cache(lambda x: x * AA)"
    ),
    "dispatch": does("m.kind.register(int, lambda x: AA)", "m.kind.register(bool, lambda x: BB)"),
    "property": does(
        "m.sized.side = AA", "m.Sized.area = BB", "m.Sized.area = property(lambda self: AA)"
    ),
    "enum": does("m.Level = m.enum.Enum('Level', {'LOW': AA})"),
}

_COMMON: Final = swaps(*ANYWHERE[:3])

PIECES_AS_FEATURES: Final[Mapping[str, Feature]] = {
    name: Feature(
        top=piece.text,
        term=piece.term,
        edits=(*swaps(*piece.changes, *piece.keeps), *_COMMON, *_CODE.get(name, ())),
    )
    for name, piece in PIECES.items()
    if name != "state"  # what a function changes is refused
}

_PART: Final = "K = 1\ndef made(name):\n    if name == 'LATER': return BB + 9\n    raise AttributeError(name)\n"

MORE: Final[Mapping[str, Feature]] = {
    "same object": Feature(
        top="A_NN = [AA, 1]\nB_NN = A_NN.copy()",
        term="(5 if A_NN is B_NN else 7)",
        edits=(
            *does("m.B_NN = m.A_NN", "m.A_NN = m.B_NN = [AA, 1]", "m.B_NN = m.A_NN.copy()"),
            *swaps(("B_NN = A_NN.copy()", "B_NN = A_NN")),
        ),
    ),
    "same entry": Feature(
        top="T_NN = {'a': {'v': AA}, 'b': {'v': AA}}\ndef same_NN(t): return t['a'] is t['b']",
        term="(3 if same_NN(T_NN) else 4)",
        edits=does("m.T_NN['b'] = m.T_NN['a']", "m.T_NN['b'] = dict(m.T_NN['a'])"),
    ),
    "same attribute": Feature(
        top="class P_NN: pass\nq_NN = P_NN()\nq_NN.a = P_NN()\nq_NN.b = P_NN()\nq_NN.a.v = q_NN.b.v = AA",
        term="(q_NN.a.v + (10 if q_NN.a is q_NN.b else 20))",
        edits=does("m.q_NN.b = m.q_NN.a", "m.q_NN.b = m.P_NN(); m.q_NN.b.v = AA"),
    ),
    "same of modules": Feature(
        top="from PKG import a_NN, b_NN",
        term="(3 if a_NN.V is b_NN.V else 8)",
        files={"a_NN.py": "V = [AA]\n", "b_NN.py": "V = [AA]\n"},
        edits=does(
            "m.b_NN.V = m.a_NN.V",
            "m.b_NN.V = m.a_NN.V.copy()",
            "m.a_NN.V.append(1)",
        ),
    ),
    "written through one": Feature(
        top="L_NN = [AA]\nM_NN = {'l': L_NN}",
        inside="    c_NN = list(M_NN['l'])",
        term="(sum(c_NN) + len(L_NN))",
        edits=does("m.L_NN.append(BB)", "m.M_NN['l'] = [AA]", "m.L_NN = [AA]"),
    ),
    "subscripted class": Feature(
        top="import typing\nT_NN = typing.TypeVar('T_NN')\nclass Box_NN(typing.Generic[T_NN]):\n    size = AA\n"
        "box_NN = Box_NN[int]()\nKIND_NN = Box_NN[int]",
        term="(KIND_NN.size + (1 if box_NN.__orig_class__.__args__[0] is int else 2)"
        " + (1 if KIND_NN.__args__[0] is int else 2))",
        edits=does(
            "m.KIND_NN = m.Box_NN[float]",
            "m.box_NN = m.Box_NN[float]()",
            "m.Box_NN.size = BB",
        ),
    ),
    "alias of a list": Feature(
        top="KIND_NN = list[int]",
        term="(4 if KIND_NN.__args__[0] is int else 9)",
        edits=does("m.KIND_NN = list[float]", "m.KIND_NN = list[int]"),
    ),
    "missing name": Feature(
        inside="    try:\n        v_NN = LATER_NN\n    except NameError:\n        v_NN = AA",
        term="v_NN",
        edits=does(
            "import builtins; builtins.LATER_NN = BB",
            "m.LATER_NN = AA + 10",
            "import builtins; vars(builtins).pop('LATER_NN', None)",
        ),
        kind="name in builtins",
    ),
    "shadowed builtin": Feature(
        term="len([1, 2, 3])", edits=does("m.len = lambda x: AA", "vars(m).pop('len', None)")
    ),
    "missing attribute": Feature(
        top="class O_NN: pass\no_NN = O_NN()",
        term="getattr(o_NN, 'v', AA) + (1 if hasattr(o_NN, 'w') else 2)",
        edits=does(
            "m.o_NN.v = BB",
            "m.O_NN.v = AA + 1",
            "m.o_NN.w = 1",
            "m.O_NN.w = 1",
            "vars(m.o_NN).clear()",
        ),
    ),
    "missing entry": Feature(
        top="D_NN = {}",
        term="D_NN.get('v', AA) + ('w' in D_NN)",
        edits=does("m.D_NN['v'] = BB", "m.D_NN['w'] = 1", "m.D_NN.clear()"),
    ),
    "registry of one's own": Feature(
        top="REGISTRY_NN = {}\ndef add_NN(f):\n    REGISTRY_NN[f.__name__] = f\n    return f\n"
        "@add_NN\ndef first_NN(x): return x + AA",
        term="sum(f(x) for f in REGISTRY_NN.values())",
        edits=does(
            "m.add_NN(lambda x: BB)", "m.REGISTRY_NN.clear()", "m.REGISTRY_NN['first_NN'] = abs"
        ),
    ),
    "init subclass": Feature(
        top="class B_NN:\n    kinds = []\n    def __init_subclass__(cls): B_NN.kinds.append(cls.v)\n"
        "class C_NN(B_NN):\n    v = AA",
        term="sum(B_NN.kinds)",
        edits=does("type('D', (m.B_NN,), {'v': BB})", "m.B_NN.kinds.pop()"),
    ),
    "attribute of a function": Feature(
        top="def f_NN(x): return f_NN.rate * x\nf_NN.rate = AA",
        term="f_NN(x)",
        edits=does("m.f_NN.rate = BB", "m.f_NN.other = BB"),
    ),
    "instance method": Feature(
        top="class I_NN:\n    def v(self): return AA\ni_NN = I_NN()",
        term="i_NN.v()",
        edits=does(
            "m.i_NN.v = lambda: BB",
            "m.I_NN.v = lambda self: AA + BB",
            "vars(m.i_NN).clear()",
            "m.i_NN.__class__ = type('J', (), {'v': lambda self: BB})",
        ),
    ),
    "slots": Feature(
        top="class S_NN:\n    __slots__ = ('a', 'b')\ns_NN = S_NN()\ns_NN.a = AA\ns_NN.b = 0",
        term="s_NN.a",
        edits=does("m.s_NN.a = BB", "m.s_NN.b = BB"),
    ),
    "descriptor": Feature(
        top="class D_NN:\n    def __init__(self, v): self.v = v\n    def __get__(self, one, cls): return self.v\n"
        "class E_NN:\n    a = D_NN(AA)\ne_NN = E_NN()",
        term="e_NN.a",
        edits=does(
            "vars(m.E_NN)['a'].v = BB",
            "m.D_NN.__get__ = lambda self, one, cls: BB * 2",
            "vars(m.e_NN)['a'] = AA + 3",
        ),
    ),
    "descriptor that becomes one of data": Feature(
        top="class D_NN:\n    def __get__(self, one, cls): return AA\nclass E_NN:\n    a = D_NN()\ne_NN = E_NN()\n"
        "vars(e_NN)['a'] = AA + BB",
        term="e_NN.a",
        edits=does("m.D_NN.__set__ = lambda self, one, v: None"),
    ),
    "metaclass": Feature(
        top="class M_NN(type):\n    @property\n    def v(cls): return cls.w * 2\n    def __len__(cls): return AA\n"
        "class N_NN(metaclass=M_NN):\n    w = BB",
        term="(N_NN.v + len(N_NN))",
        edits=does("m.N_NN.w = AA", "m.M_NN.v = BB", "m.M_NN.__len__ = lambda cls: BB + 3"),
    ),
    "operators": Feature(
        top="class V_NN:\n    def __init__(self, v): self.v = v\n    def __add__(self, o): return self.v + o.v\n"
        "a_NN, b_NN = V_NN(AA), V_NN(BB)",
        term="(a_NN + b_NN)",
        edits=does(
            "m.V_NN.__add__ = lambda self, o: self.v * o.v",
            "m.b_NN.v = AA * 2",
            "m.b_NN = m.a_NN",
            "m.b_NN = type('W', (m.V_NN,), {'__radd__': lambda self, o: 99})(BB)",
        ),
    ),
    "named tuple": Feature(
        top="from collections import namedtuple\nT_NN = namedtuple('T_NN', 'a b')\nt_NN = T_NN(AA, BB)",
        term="(t_NN.a * 2 + t_NN[1] + len(T_NN._fields))",
        edits=does(
            "m.t_NN = m.T_NN(BB, AA)",
            "m.t_NN = m.t_NN._replace(b=AA)",
            "m.t_NN = (AA, BB, AA) if 0 else m.t_NN",
        ),
    ),
    "typed named tuple": Feature(
        top="import typing\nclass T_NN(typing.NamedTuple):\n    a: int = AA\n    b: int = BB\n    def c(self): return self.a - self.b",
        term="T_NN().c()",
        edits=(
            *does("m.T_NN.c = lambda self: self.b"),
            *swaps(("a: int = AA", "a: int = 11"), ("self.a - self.b", "self.b - self.a")),
        ),
    ),
    "frozen dataclass": Feature(
        top="@dataclass(frozen=True)\nclass F_NN:\n    a: int\n    b: tuple = (1, 2)\nf_NN = F_NN(AA)",
        term="(f_NN.a + sum(f_NN.b))",
        edits=does(
            "m.f_NN = m.F_NN(BB)",
            "object.__setattr__(m.f_NN, 'a', AA + 5)",
            "m.f_NN = m.F_NN(AA, (3,))",
        ),
    ),
    "collections": Feature(
        top="import collections\nC_NN = collections.Counter(a=AA)\nD_NN = collections.deque([AA, BB])\n"
        "O_NN = collections.OrderedDict(a=1, b=AA)\nE_NN = collections.defaultdict(lambda: BB)\nS_NN = {AA, 40}",
        term="(C_NN['a'] + D_NN[0] + list(O_NN.values())[0] + len(E_NN) + max(S_NN))",
        edits=does(
            "m.C_NN['a'] += 1",
            "m.D_NN.rotate(1)",
            "m.O_NN.move_to_end('a')",
            "m.E_NN['x'] = 1",
            "m.S_NN.add(50)",
            "m.S_NN.discard(40)",
            "m.D_NN.append(AA)",
        ),
    ),
    "nested containers": Feature(
        top="N_NN = {'a': [{'b': (AA, [BB])}]}",
        term="(N_NN['a'][0]['b'][1][0] + N_NN['a'][0]['b'][0])",
        edits=does("m.N_NN['a'][0]['b'][1][0] = AA", "m.N_NN['a'].insert(0, {'b': (1, [2])})"),
    ),
    "module getattr": Feature(
        top="from PKG import made_NN",
        term="made_NN.value",
        files={
            "made_NN.py": "def other(name):\n    if name == 'value': return BB + 20\n    raise AttributeError(name)\n"
            "def __getattr__(name):\n    if name == 'value': return AA + 1\n    raise AttributeError(name)\n"
        },
        edits=(
            *does(
                "m.made_NN.value = BB",
                "m.made_NN.__getattr__ = m.made_NN.other",
                "vars(m.made_NN).pop('value', None)",
            ),
            *swaps(("return AA + 1", "return AA + 2")),
        ),
    ),
    "module replaced": Feature(
        top="from PKG import part_NN",
        term="part_NN.f(x)",
        files={"part_NN.py": "K = AA\ndef f(x): return x * K\n"},
        edits=(
            *does(
                "m.part_NN.f = lambda x: BB",
                "m.part_NN.K = BB",
                "m.part_NN = m.SimpleNamespace(f=lambda x: AA)",
                "import types; n = types.ModuleType('n'); n.f = abs; m.part_NN = n",
            ),
            *swaps(("x * K", "x - K"), ("K = AA", "K = AA + 30")),
        ),
    ),
    "library patched": Feature(
        top="import math, statistics",
        inside="    from statistics import mean as mean_NN",
        term="(int(statistics.median([1, AA])) + int(mean_NN([AA, AA])) + int(math.floor(2.5)))",
        edits=does(
            "m.math.floor = lambda v: BB if v == 2.5 else int(v // 1)",
            "m.statistics.median = lambda v: BB",
        ),
        kind="library patched",
    ),
    "instance of getattr": Feature(
        top="class G_NN:\n    def __init__(self, o): self.o = o\n    def __getattr__(self, name): return getattr(self.o, name)\n"
        "g_NN = G_NN(SimpleNamespace(v=AA))",
        term="g_NN.v",
        edits=does(
            "m.g_NN.o.v = BB",
            "m.g_NN.v = AA + 40",
            "m.g_NN.o = m.SimpleNamespace(v=BB + 1)",
            "m.G_NN.__getattr__ = lambda self, name: BB + 7",
        ),
    ),
    "cached property": Feature(
        top="class P_NN:\n    def __init__(self): self.k = AA\n    @functools.cached_property\n    def v(self): return self.k + 1\np_NN = P_NN()",
        term="p_NN.v",
        edits=does("m.p_NN.k = BB", "m.p_NN.v", "m.p_NN.v = 3", "vars(m.p_NN).pop('v', None)"),
    ),
    "cached helper": Feature(
        top="K_NN = AA\n@functools.lru_cache(None)\ndef c_NN(x): return x * K_NN\ndef d_NN(x): return c_NN(x) + 1",
        term="d_NN(x)",
        edits=does("m.K_NN = BB", "m.c_NN.cache_clear()", "m.c_NN = lambda x: AA"),
    ),
    "method of a class": Feature(
        top="class K_NN:\n    v = AA\n    @classmethod\n    def c(cls): return cls.v\n    @staticmethod\n    def s(x): return x + BB\nclass L_NN(K_NN): pass",
        term="(L_NN.c() + L_NN.s(x))",
        edits=does(
            "m.K_NN.v = BB",
            "m.L_NN.v = AA + 1",
            "m.K_NN.s = staticmethod(lambda x: AA)",
            "m.L_NN.c = classmethod(lambda cls: BB)",
            "m.L_NN.__bases__ = (type('Z', (m.K_NN,), {'v': 70}),)",
        ),
    ),
    "isinstance": Feature(
        top="class A_NN: pass\nclass B_NN(A_NN): pass\nb_NN = B_NN()",
        term="(2 if isinstance(b_NN, A_NN) else 5)",
        edits=does(
            "m.B_NN.__bases__ = (type('X', (), {}),)",
            "m.b_NN = m.SimpleNamespace()",
            "m.A_NN = int",
        ),
    ),
    "class check": Feature(
        top="class M_NN(type):\n    def __instancecheck__(cls, o): return len(str(o)) > AA\nclass A_NN(metaclass=M_NN): pass",
        term="(2 if isinstance(12345, A_NN) else 5)",
        edits=does(
            "m.M_NN.__instancecheck__ = lambda cls, o: False",
            "m.M_NN.__instancecheck__ = lambda cls, o: True",
        ),
    ),
    "iterator class": Feature(
        top="class R_NN:\n    n = AA\n    def __iter__(self): return iter(range(self.n))\nr_NN = R_NN()",
        term="sum(r_NN)",
        edits=does("m.R_NN.n = BB", "m.R_NN.__iter__ = lambda self: iter([1])", "m.r_NN = [AA]"),
    ),
    "callable object": Feature(
        top="class C_NN:\n    k = AA\n    def __call__(self, x): return x * self.k\nc_NN = C_NN()",
        term="c_NN(x)",
        edits=does("m.c_NN.k = BB", "m.C_NN.__call__ = lambda self, x: BB", "m.c_NN = abs"),
    ),
    "kept function": Feature(
        top="def one_NN(x): return x + AA\ndef two_NN(x): return x + BB\nchosen_NN = {True: one_NN, False: two_NN}\nFLAG_NN = True",
        term="chosen_NN[FLAG_NN](x)",
        edits=does(
            "m.FLAG_NN = False",
            "m.one_NN.__code__ = (lambda x: x * 3).__code__",
            "m.chosen_NN = {True: m.two_NN}",
        ),
    ),
    "text of a number": Feature(
        top="S_NN = 'AA'\nB_NN = b'AA'\nBIG_NN = 2 ** 40 + AA\nF_NN = 0.5\nZ_NN = 0.0",
        term="(int(S_NN) + len(B_NN) + BIG_NN % 97 + int(F_NN * 4) + (1 if str(Z_NN) == '0.0' else 2))",
        edits=does(
            "m.S_NN = 'BB'",
            "m.B_NN = b'ab'",
            "m.BIG_NN += 1",
            "m.F_NN = 1",
            "m.Z_NN = -0.0",
            "m.S_NN = int(m.S_NN)",
        ),
    ),
    "kind of a number": Feature(
        top="V_NN = 1",
        term="{int: 1, bool: 2, float: 3}[type(V_NN)]",
        edits=does("m.V_NN = True", "m.V_NN = 1.0", "m.V_NN = 1"),
    ),
    "missing name of a module": Feature(
        top="from PKG import part_NN",
        inside="    try:\n        from PKG.part_NN import LATER as v_NN\n    except ImportError:\n        v_NN = AA",
        term="v_NN",
        files={"part_NN.py": _PART},
        edits=does(
            "m.part_NN.LATER = BB",
            "vars(m.part_NN).pop('LATER', None)",
            "m.part_NN.__getattr__ = m.part_NN.made",
        ),
    ),
    "missing name of a late module": Feature(
        inside="    try:\n        from PKG.part_NN import LATER as v_NN\n    except ImportError:\n        v_NN = AA",
        term="v_NN",
        files={"part_NN.py": "K = 1\n"},
        edits=(*swaps(("K = 1", "LATER = BB")), *does("module('PKG.part_NN').LATER = BB")),
    ),
    "missing module": Feature(
        inside="    try:\n        from PKG import none_NN as q_NN\n        v_NN = q_NN.V\n    except ImportError:\n        v_NN = AA",
        term="v_NN",
        edits=(Edit(write={"none_NN.py": "V = BB\n"}), Edit(write={"none_NN.py": "V = AA + 20\n"})),
    ),
    "missing module of a late one": Feature(
        inside="    from PKG.part_NN import V as v_NN",
        term="v_NN",
        files={
            "part_NN.py": "try:\n    from PKG.none_NN import V\nexcept ImportError:\n    V = AA\n"
        },
        edits=(Edit(write={"none_NN.py": "V = BB\n"}), Edit(write={"none_NN.py": "V = AA + 20\n"})),
    ),
    "missing attribute of a module": Feature(
        top="from PKG import part_NN",
        term="getattr(part_NN, 'LATER', AA)",
        files={"part_NN.py": _PART},
        edits=does(
            "m.part_NN.LATER = BB",
            "m.part_NN.__getattr__ = m.part_NN.made",
        ),
    ),
    "star import": Feature(
        top="from PKG.stars_NN import *",
        term="star_NN(x)",
        files={"stars_NN.py": "def star_NN(x): return x + AA\n"},
        edits=swaps(("x + AA", "x + BB")),
    ),
}
