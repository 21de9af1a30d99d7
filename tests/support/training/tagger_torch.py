"""The tagger of `tagger_keras.py` as a loop in PyTorch: padded words have an ignored index."""

from __future__ import annotations

import numpy as np
import setting
import torch
from torch import nn

import unified_clip.torch as uc

WORDS, TAGS, UNITS, LENGTH, SENTENCES, STEPS = 20, 5, 8, 6, 8, 8


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, UNITS)
        self.lstm = nn.LSTM(UNITS, UNITS, batch_first=True)
        self.out = nn.Linear(UNITS, TAGS)
        self.embed.weight.data = torch.from_numpy(setting.weight("tagger.embed", WORDS, UNITS))
        self.lstm.weight_ih_l0.data = torch.from_numpy(setting.weight("tagger.kernel", UNITS, 4 * UNITS).T.copy())
        self.lstm.weight_hh_l0.data = torch.from_numpy(setting.weight("tagger.recurrent", UNITS, 4 * UNITS).T.copy())
        self.lstm.bias_ih_l0.data = torch.zeros(4 * UNITS)
        self.lstm.bias_ih_l0.data[UNITS : 2 * UNITS] = 1.0
        self.lstm.bias_hh_l0.data = torch.zeros(4 * UNITS)
        self.lstm.bias_hh_l0.requires_grad_(False)  # Keras has one bias
        self.out.weight.data = torch.from_numpy(setting.weight("tagger.out", UNITS, TAGS).T.copy())
        self.out.bias.data = torch.from_numpy(setting.weight("tagger.bias", TAGS))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.embed(words))[0])


def sentences() -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(11)
    words = random.integers(1, WORDS, (STEPS * SENTENCES, LENGTH))
    words[np.arange(LENGTH) >= random.integers(2, LENGTH + 1, len(words))[:, None]] = 0
    tags = random.integers(0, TAGS, words.shape)
    tags[words == 0] = -100
    return torch.from_numpy(words), torch.from_numpy(tags)


def main() -> None:
    model, criterion = Tagger(), nn.CrossEntropyLoss(ignore_index=-100)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.02, betas=(0.9, 0.9), eps=1e-9)
    for words, tags in zip(*(each.split(SENTENCES) for each in sentences()), strict=True):
        loss = criterion(model(words).flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        uc.ClipGradByGlobalNorm(0.2).clip_(trained)
        optimizer.step()


main()
