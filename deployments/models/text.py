"""`text`: the topic of a sentence, by the nearest of a few prototype sentences; or its vector."""

from typing import TYPE_CHECKING

from fermata.deployments.models.minilm import (
    POSITIONS,
    WIDTH,
    Tokens,
    embed,
    load_weights,
    weights_folder,
)
from fermata.deployments.models.model import Answers, Array, Card, TorchModel, check_batch, pick
from fermata.foundation.errors import ConfigError

if TYPE_CHECKING:
    import torch

NAMES = ("topics", "vectors")
LENGTH = 64
# Cosines of unrelated sentences lie within 0.1 of each other: this makes their scores differ.
SHARPNESS = 20.0

# Prototype sentences of each topic. A topic's score is that of its nearest one, so that a topic
# may have several sides; add a line to teach it another.
PROTOTYPES: dict[str, tuple[str, ...]] = {
    "sport": (
        "The team won the match after scoring a late goal.",
        "The athlete broke the record and took the gold medal.",
        "The coach praised the players before the tournament.",
    ),
    "politics": (
        "The president and parliament argued about a new law.",
        "Voters go to the polls in the general election.",
        "The minister announced the government's policy.",
    ),
    "business": (
        "The company's shares rose after it reported higher profits.",
        "The central bank raised interest rates to fight inflation.",
        "The firm agreed to buy its rival in a merger.",
    ),
    "technology": (
        "The software update fixes a bug in the computer's operating system.",
        "The new phone has a faster chip and a better screen.",
        "Engineers train neural networks on large servers.",
    ),
    "science": (
        "Astronomers observed a distant galaxy with a telescope.",
        "Researchers published an experiment on molecules and cells.",
        "Physicists measured a new particle in the laboratory.",
    ),
    "health": (
        "The doctor gave the patient medicine for the disease.",
        "The hospital treated people with symptoms of infection.",
        "Regular exercise and sleep lower the risk of illness.",
    ),
    "food": (
        "Bake the cake with butter, sugar and flour.",
        "The restaurant serves fresh fish and vegetables.",
        "Stir the soup and add salt and pepper to taste.",
    ),
    "travel": (
        "We booked a flight and a hotel for our holiday.",
        "Tourists visited the old town and the beach.",
        "The train journey through the mountains takes a day.",
    ),
    "arts": (
        "The painter's exhibition opened at the museum.",
        "The band released an album and played a concert.",
        "The film's director and the novel's author spoke about the story.",
    ),
    "weather": (
        "Heavy rain and strong wind are forecast for tomorrow.",
        "It will be sunny and warm, with clouds in the evening.",
        "The storm brought snow and freezing temperatures.",
    ),
}


class TextModel(TorchModel):
    """Scores [b, topics], or vectors [b, 384], of token ids [b, length]."""

    def __call__(self, batch: Array) -> Answers:
        check_batch(self.card, batch, ("int64",))
        return super().__call__(batch)


def load(name: str = "topics", length: int | None = None, device: str = "cpu") -> TextModel:
    """The model by name; `length` is how many tokens of a sentence it reads."""
    card = describe(name, length)
    weights = load_weights()
    if name == "topics":
        weights.register_buffer("prototypes", _prototypes(weights))
        model = TextModel(card, weights, lambda batch: _topics(weights, batch))
    else:
        model = TextModel(card, weights, lambda batch: embed(weights, batch))
    model.to(device)
    return model


def describe(name: str, length: int | None = None) -> Card:
    """The card that `load` would give, at no cost."""
    pick("text", name, NAMES)
    tokens = LENGTH if length is None else length
    if not 4 <= tokens <= POSITIONS:
        raise ConfigError(f"text:{name}@{tokens}: length must be 4 to {POSITIONS} tokens")
    topics = name == "topics"
    return Card(
        f"text:{name}@{tokens}",
        (tokens,),
        "int64",
        (len(PROTOTYPES),) if topics else (WIDTH,),
        labels=tuple(PROTOTYPES) if topics else (),
        text=True,
        file_bytes=(weights_folder() / "model.safetensors").stat().st_size,
    )


def _prototypes(weights: "torch.nn.Module") -> "torch.Tensor":
    """Vectors [topics, prototypes, 384]."""
    import torch

    tokens = Tokens(LENGTH)
    with torch.inference_mode():
        rows = [embed(weights, torch.from_numpy(tokens(each))) for each in PROTOTYPES.values()]
        return torch.stack(rows)


def _topics(weights: "torch.nn.Module", batch: "torch.Tensor") -> "torch.Tensor":
    import torch

    prototypes = weights.get_buffer("prototypes")
    cosines = torch.einsum("bw,tpw->btp", embed(weights, batch), prototypes)
    return (cosines.amax(dim=2).float() * SHARPNESS).softmax(dim=1)
