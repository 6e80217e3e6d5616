"""A word-level language model on torch's own LSTM, after torch's classic word-language-model example.

In: (batch, time) token numbers and, optionally, the state of an earlier call. Out: (batch, time, vocabulary) logits
and the new state.
"""

from __future__ import annotations

from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class LSTMLanguageModel(nn.Module):
    """Embedding, stacked LSTM, projection; the embedding's weight is shared with the projection when ``tied``."""

    def __init__(
        self,
        vocabulary: int = 10_000,
        width: int = 256,
        layers: int = 2,
        dropout: float = 0.1,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, num_layers=layers, dropout=dropout, batch_first=True)
        self.head = nn.Linear(width, vocabulary)
        if tied:
            self.head.weight = self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        embedded = self.dropout(self.embedding(tokens))
        hidden, state = self.lstm(embedded, state)
        return self.head(self.dropout(hidden)), state
