"""The functional twin of in-place and ``out=`` operators."""

import pytest
from _schema import find_overload, functional_name, schema_name

TWINS = {
    "add_.Tensor": "add.Tensor",
    "add.out": "add.Tensor",
    "sum.IntList_out": "sum.dim_IntList",
    "max.dim_max": "max.dim",
    "sort.values_stable": "sort.stable",
    "arange.start_out": "arange.start_step",
    "full.out": "full",
    "zeros_like.out": "zeros_like",
    "zero_": "zero",
    "fill_.Scalar": "fill.Scalar",
    "bernoulli_.float": "bernoulli.p",
    "normal_": "normal_functional",
    "random_.from": "random.from",
    "uniform_": "uniform",
    "__ior__.Scalar": "__or__.Scalar",
    "_foreach_add_.Scalar": "_foreach_add.Scalar",
    "_fused_adamw_": "_fused_adamw",
    "_native_batch_norm_legit": "_native_batch_norm_legit_functional",
    "rrelu_with_noise": "rrelu_with_noise_functional",
}


@pytest.mark.parametrize(("name", "twin"), TWINS.items())
def test_functional_name(name, twin):
    assert functional_name(find_overload(f"aten::{name}")) == f"aten::{twin}"


@pytest.mark.parametrize("name", ["aten::relu", "aten::add.Tensor", "aten::native_batch_norm", "aten::__or__.Tensor"])
def test_a_functional_operator_is_its_own_twin(name):
    overload = find_overload(name)
    assert schema_name(overload) == functional_name(overload) == name


def test_absent_operators():
    assert find_overload("aten::no_such_operator") is None
    assert find_overload("aten::relu.no_such_overload") is None
