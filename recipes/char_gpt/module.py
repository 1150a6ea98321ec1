"""A small transformer over characters, and the reference of Python as its text; both run under a plain ``pl.Trainer``.

The model is a decoder in the manner of GPT-2 (Radford et al., 2019): learned positions, pre-norm blocks, GELU.
"""

from __future__ import annotations

from collections.abc import Callable
from pydoc_data.topics import topics

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""What the text consists of; the place of a character here is its number. Others are left out."""

Batch = tuple[Tensor, Tensor]


class Block(nn.Module):
    """Attention to what came before, then two layers for each place.

    Args:
        width: size of the vector of a place.
        heads: of the attention.
        dropout: share of the values that are left out in training.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, places: Tensor) -> Tensor:
        """From ``(n, length, width)`` to the same."""
        n, length, width = places.shape
        parts = self.query_key_value(self.before_attention(places)).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        places = places + F.dropout(self.out(seen.transpose(1, 2).reshape(n, length, width)), dropout)
        after: Tensor = places + self.layers(self.before_layers(places))
        return after


class CharGPT(pl.LightningModule):
    """Predicts the next character; cross entropy in nats a character as ``val/loss``.

    A batch is the numbers of characters ``(n, length)``, and of those that follow them, of the same shape.

    Args:
        optimizer: called with the parameters; needed for training only.
        context: largest length.
        width: size of the vector of a place.
        depth: number of blocks.
        heads: of the attention.
        dropout: share of the values that are left out in training.
        checkpointing: compute blocks again in the backward pass instead of keeping what they computed: less memory,
            more time, the same weights.
    """

    def __init__(
        self,
        optimizer: Callable[..., Optimizer] | None = None,
        context: int = 64,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"model.width={width} must be a multiple of model.heads={heads}: change one of them.")
        self.save_hyperparameters(ignore=["optimizer"])
        self.optimizer = optimizer
        self.checkpointing = checkpointing
        self.characters, self.positions = nn.Embedding(len(CHARACTERS), width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(CHARACTERS)))

    def forward(self, numbers: Tensor) -> Tensor:
        """Logits ``(n, length, characters)`` of what follows each place."""
        places = self.characters(numbers) + self.positions.weight[: numbers.shape[1]]
        for block in self.blocks:
            if self.checkpointing and self.training:
                places = checkpoint(block, places, use_reentrant=False)
            else:
                places = block(places)
        logits: Tensor = self.head(places)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self._loss(batch)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("val/loss", self._loss(batch), batch_size=len(batch[0]), sync_dist=True)

    def _loss(self, batch: Batch) -> Tensor:
        numbers, following = batch
        return F.cross_entropy(self(numbers).flatten(0, 1), following.flatten())

    def configure_optimizers(self) -> Optimizer:
        if self.optimizer is None:
            raise ValueError("optimizer is needed for training: pass CharGPT(optimizer=...).")
        return self.optimizer(self.parameters())


class Windows(Dataset[Batch]):
    """Pieces of a text, one beginning where the one before ends.

    Args:
        numbers: of its characters, ``(length,)``.
        context: length of a piece.
    """

    def __init__(self, numbers: Tensor, context: int) -> None:
        self.numbers, self.context = numbers, context

    def __len__(self) -> int:
        return (len(self.numbers) - 1) // self.context

    def __getitem__(self, index: int) -> Batch:
        start = index * self.context
        piece = self.numbers[start : start + self.context + 1]
        return piece[:-1], piece[1:]


class PythonReference(pl.LightningDataModule):
    """The reference that Python itself brings along (``help('if')``), the last tenth for validation.

    Args:
        batch_size: pieces in a batch of one logical rank.
        context: characters of a piece; ``model.context`` has to be as large.
    """

    description = "the reference of Python, which the interpreter brings along"

    def __init__(self, batch_size: int = 32, context: int = 64) -> None:
        super().__init__()
        self.batch_size, self.context = batch_size, context
        text = "\n".join(topics[name] for name in sorted(topics))
        numbers = torch.tensor([CHARACTERS.index(each) for each in text if each in CHARACTERS])
        kept = len(numbers) * 9 // 10
        self.train, self.val = Windows(numbers[:kept], context), Windows(numbers[kept:], context)

    def check(self, model: CharGPT) -> None:
        """See that the model takes pieces of this length."""
        room = model.positions.num_embeddings
        if room < self.context:
            raise ValueError(f"data.context={self.context} must be at most model.context={room}: change one of them.")

    def train_dataloader(self) -> DataLoader[Batch]:
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        return DataLoader(self.val, 2 * self.batch_size)
