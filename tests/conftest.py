"""What all tests share: strict mode and the compiler under test.

`--compiler torch` runs the same tests on torch.compile, which is how the tests themselves are checked.
"""

from __future__ import annotations

import os
from pathlib import Path

# Before anything of graphlift is imported: an internal error is a failure here, not a quiet step back to eager.
os.environ.setdefault("GRAPHLIFT_STRICT", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

ROOT = Path(__file__).resolve().parent.parent

import pytest  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402  # replaces `torch.manual_seed`: here, so that no break depends on the tests' order
from hypothesis import HealthCheck, Phase, settings  # noqa: E402

# "ci" always draws the same examples and reports a failure as found; "shrink" makes it small first, which can take
# minutes where every try compiles; "long" draws many new ones. Choose with HYPOTHESIS_PROFILE.
settings.register_profile(
    "ci",
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
settings.register_profile("shrink", parent=settings.get_profile("ci"), phases=list(Phase))
settings.register_profile("long", parent=settings.get_profile("shrink"), max_examples=1000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

torch.manual_seed(0)  # for the weights and inputs that test modules draw as they are imported


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same draws in every run: a difference by rounding is found every time or never."""
    torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compiler", default="graphlift", help="compiler under test: graphlift, torch or eager")
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.fixture
def compiler(request: pytest.FixtureRequest):
    """The compiler under test, with empty caches before and after."""
    from benchmarks.compilers import COMPILERS

    made = COMPILERS[request.config.getoption("--compiler")]()
    made.reset()
    yield made
    made.reset()
