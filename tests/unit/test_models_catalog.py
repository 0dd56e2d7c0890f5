"""Names of models, and models made by any Python function."""

import sys
import types

import numpy as np
import pytest

from fermata.deployments.models.catalog import EMBEDDED, ModelName, open_model, parse_name
from fermata.deployments.models.model import Array, Card, check_batch
from fermata.foundation.errors import ConfigError


class Doubler:
    """A user's model that describes itself."""

    card = Card("doubler", (2,), "float32", (2,))

    def __call__(self, batch: Array) -> Array:
        return batch * 2


@pytest.fixture(autouse=True)
def _user_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("users_own")
    module.load = Doubler  # type: ignore[attr-defined]
    module.bare = lambda: np.negative  # type: ignore[attr-defined]
    module.placed = lambda device: lambda batch: [device]  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    module.nothing = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_own", module)


def test_names_have_a_family_a_name_and_perhaps_a_size() -> None:
    assert parse_name("digits:small") == ModelName("digits", "small")
    assert parse_name("imagenet:lite0@160") == ModelName("imagenet", "lite0", 160)
    assert parse_name("torchvision:resnet50") == ModelName("torchvision", "resnet50")
    assert parse_name("users_own:load") == ModelName("users_own", "load")
    for name in EMBEDDED:
        parse_name(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("resnet50", "FAMILY:NAME"),
        ("digits:", "FAMILY:NAME"),
        ("digits:huge", "known: nano, small, medium, large, xl"),
        ("digits:small@8", "always 8x8"),
        ("imagenet:lite0@big", "'big' must be a whole number"),
        ("imagenet:lite9", "known: lite0"),
        ("users_own:absent", "has no absent"),
        ("no_such_module:load", "no module 'no_such_module'"),
        ("users_own:number", "is a int, not a function"),
        ("users_own:nothing", "cannot be called"),
        ("users_own:bare", "give its model a card"),
    ],
)
def test_what_cannot_be_opened_is_refused_in_one_line(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        open_model(name)
    assert "\n" not in str(caught.value)


def test_a_function_gives_a_model_with_or_without_a_card() -> None:
    batch = np.ones((1, 2), np.float32)
    assert np.array_equal(open_model("users_own:load")(batch), [[2, 2]])
    bare = open_model("users_own:bare", input_shape=(2,))
    assert np.array_equal(bare(bare.card.make_batch(3)), -bare.card.make_batch(3))
    assert list(open_model("users_own:placed", "cuda", (2,))(batch)) == ["cuda"]


def test_cards_tell_profiles_what_one_input_is() -> None:
    assert Card("a", (3, 224, 224), "uint8", (1000,)).input == "3x224"
    assert Card("a", (64,), "int64", (10,)).input == "tokens 64"
    assert Card("a", (3, 9, 16), "float32", (2,)).input == "3x9x16"


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_made_batches_have_the_cards_shape_and_type(dtype: str) -> None:
    batch = Card("a", (3, 4), dtype, (2,)).make_batch(5)
    assert batch.shape == (5, 3, 4)
    assert batch.dtype.name == dtype


def test_a_batch_of_another_shape_or_type_is_refused() -> None:
    card = Card("a", (3, 4), "uint8", (2,))
    check_batch(card, np.zeros((7, 3, 4), np.uint8), ("uint8",))
    for wrong in (np.zeros((7, 4, 3), np.uint8), np.zeros((7, 3, 4), np.float64)):
        with pytest.raises(ConfigError, match=r"must be uint8 of \[batch, 3, 4\]"):
            check_batch(card, wrong, ("uint8",))
