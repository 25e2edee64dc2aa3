"""Send the tests' own functions by value: a rank then need not import pytest to find them."""

import cloudpickle
import pytest


@pytest.fixture(scope="module", autouse=True)
def by_value(request):
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
