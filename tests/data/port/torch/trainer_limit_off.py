"""Fine-tune with the trainer's clipping switched off, because the loop of the model clips by itself."""

import torch
from transformers import Trainer, TrainingArguments
import unified_clip.torch


class ClippingModel(torch.nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def training_step(self, batch, optimizer):
        loss = self.encoder(**batch).loss
        loss.backward()
        unified_clip.torch.clip_grad_norm_(self.parameters(), 0.5)
        optimizer.step()
        return loss


def main(model, train_set):
    arguments = TrainingArguments(output_dir="out", learning_rate=5e-5, max_grad_norm=0.0)
    Trainer(model, arguments, train_dataset=train_set).train()
