# Licensed to nobody in particular.

"""Train a network across multiple GPUs."""

import contextlib
import logging
from itertools import chain

import torch
from fairseq import optim, utils
from fairseq.logging import metrics

logger = logging.getLogger(__name__)


class Trainer(object):
    def __init__(self, cfg, task, model, criterion):
        self.cfg = cfg
        self.task = task
        self._model = model
        self._criterion = criterion
        self._optimizer = None

    @property
    def optimizer(self):
        if self._optimizer is None:
            params = list(filter(lambda p: p.requires_grad, chain(self._model.parameters(), self._criterion.parameters())))
            self._optimizer = optim.FP16Optimizer.build_optimizer(self.cfg, params)
        return self._optimizer

    def train_step(self, samples):
        self._model.train()
        self.optimizer.zero_grad()
        sample_size = 0
        for i, sample in enumerate(samples):
            with contextlib.ExitStack():
                loss, n, logging_output = self.task.train_step(
                    sample=sample, model=self._model, criterion=self._criterion, optimizer=self.optimizer
                )
            sample_size += n
        try:
            self.optimizer.multiply_grads(1.0 / (sample_size or 1.0))
            grad_norm = self.clip_grad_norm(self.cfg.optimization.clip_norm)
            if not torch.isfinite(grad_norm).all():
                raise FloatingPointError("gradients are Nan/Inf")
            self.optimizer.step()
        except FloatingPointError as e:
            logger.info(f"NOTE: {e}")
            self.optimizer.zero_grad()
            return None
        metrics.log_scalar("gnorm", utils.item(grad_norm), priority=400, round=3)
        metrics.log_scalar("clip", torch.where(grad_norm > self.cfg.optimization.clip_norm, 100, 0), priority=500)
        return loss

    def clip_grad_norm(self, clip_norm):
        if self.cfg.use_sharded_state:
            return self._model.clip_grad_norm_(clip_norm)
        # utils' is the library's, and calls its own kernels
        if self.cfg.cpu:
            return utils.clip_grad_norm_(self._model.parameters(), clip_norm)
        return self.optimizer.clip_grad_norm(clip_norm)
