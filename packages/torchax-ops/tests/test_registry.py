"""The table of operators, and what holds for every operator in it."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections import defaultdict

import pytest

import torchax_ops
from torchax_ops import _registry, lookup, register, registered
from torchax_ops._registry import exported

MODULES = [module.name for module in pkgutil.walk_packages(torchax_ops.__path__, "torchax_ops.")]


for _name in MODULES:
    importlib.import_module(_name)
ARGUMENTS = defaultdict(set)
for _op in registered():
    ARGUMENTS[_op.fn.__module__] |= set(inspect.signature(_op.fn).parameters)


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(_registry, "_REGISTRY", {})


@pytest.mark.usefixtures("table")
def test_register_and_lookup():
    def check(self, exponent):
        pass

    @register("pow.Tensor_Scalar", "mine::power", static=("exponent",), traced=("n",), eager=True, check=check)
    def power(self, exponent, n=0):
        return self

    op = lookup("aten::pow.Tensor_Scalar")
    assert op.fn is power
    assert (op.name, op.static, op.traced, op.eager, op.check) == (
        "aten::pow.Tensor_Scalar",
        {"exponent"},
        {"n"},
        True,
        check,
    )
    assert op.key is None
    assert lookup("mine::power").fn is power
    assert lookup("aten::pow") is None
    assert [op.name for op in registered()] == ["aten::pow.Tensor_Scalar", "mine::power"]


@pytest.mark.usefixtures("table")
def test_key_is_seen_in_the_signature():
    @register("rand")
    def rand(size, *, key):
        return key

    assert lookup("aten::rand").key == "key"


@pytest.mark.usefixtures("table")
def test_a_tensor_called_key_is_none():
    @register("attention")
    def attention(query, key, *, prng_key=None):
        return query

    @register("scores")
    def scores(query, key):
        return query

    assert lookup("aten::attention").key == "prng_key"
    assert lookup("aten::scores").key is None


@pytest.mark.usefixtures("table")
def test_no_name_twice():
    register("relu")(lambda self: self)
    with pytest.raises(ValueError, match="aten::relu is registered twice"):
        register("relu")(lambda self: self)
    assert len(list(registered())) == 1


def test_importing_loads_no_torch():
    code = (
        f"import sys, importlib; [importlib.import_module(m) for m in {MODULES!r}]; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_package_imports_every_module():
    code = f"import sys, torchax_ops; print(*[m for m in {MODULES!r} if m not in sys.modules])"
    left_out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert [m for m in left_out if not m.rpartition(".")[2].startswith("_")] == []


def test_every_public_module_lists_what_it_registers():
    for name in MODULES:
        module = sys.modules[name]
        if not name.rpartition(".")[2].startswith("_") and not hasattr(module, "__path__"):
            assert sorted(module.__all__) == sorted(exported(name)), name


@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in registered()])
def test_operator(op):
    parameters = inspect.signature(op.fn).parameters
    assert not {"layout", "device", "pin_memory", "memory_format", "generator"} & set(parameters)
    assert not any(p.name == "out" and p.kind is p.KEYWORD_ONLY for p in parameters.values())
    assert not op.static & op.traced
    assert op.static | op.traced <= ARGUMENTS[op.fn.__module__], "static= and traced= name arguments"
    if op.key:
        assert parameters[op.key].kind is inspect.Parameter.KEYWORD_ONLY
    if op.check is not None:
        given = [p for p in parameters.values() if p.name != op.key]
        keywords = {p.name: None for p in given if p.kind is inspect.Parameter.KEYWORD_ONLY}
        inspect.signature(op.check).bind(*[None] * (len(given) - len(keywords)), **keywords)
    base = op.name.rpartition("::")[2].partition(".")[0]
    assert not base.endswith("_") or base.startswith("__"), "in-place operators are derived from functional ones"
    assert op.fn.__name__.startswith("_") or inspect.getdoc(op.fn), "a public operator has a docstring"
