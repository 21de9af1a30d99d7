from __future__ import annotations

from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer
import unified_clip.torch


class VAEGAN(L.LightningModule):
    def __init__(self, encoder: nn.Module, decoder: nn.Module, disc: nn.Module, lr: float = 2e-4, clip: float = 1.0):
        super().__init__()
        self.save_hyperparameters(ignore=["encoder", "decoder", "disc"])
        self.encoder, self.decoder, self.disc = encoder, decoder, disc
        self.automatic_optimization = False

    def configure_optimizers(self) -> list[Optimizer]:
        ae = torch.optim.Adam([*self.encoder.parameters(), *self.decoder.parameters()], lr=self.hparams.lr)
        return [ae, torch.optim.Adam(self.disc.parameters(), lr=self.hparams.lr)]

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None) -> None:
        # called in automatic optimization only
        self.clip_gradients(optimizer, gradient_clip_val=gradient_clip_val, gradient_clip_algorithm="norm")

    def training_step(self, batch: Any, batch_idx: int) -> None:
        opt_ae, opt_disc = self.optimizers()
        x, _ = batch
        recon = self.decoder(self.encoder(x))

        opt_ae.zero_grad()
        self.manual_backward(F.mse_loss(recon, x) - self.disc(recon).mean())
        for group in opt_ae.param_groups:
            unified_clip.torch.clip_grad_norm_(group["params"], max_norm=self.hparams.clip, error_if_nonfinite=True)
        opt_ae.step()

        opt_disc.zero_grad()
        self.manual_backward(self.disc(recon.detach()).mean() - self.disc(x).mean())
        unified_clip.torch.clip_grad_norm_(self.disc.parameters(), self.hparams.clip)
        opt_disc.step()
        for p in self.disc.parameters():
            p.data.clamp_(-0.01, 0.01)
