# encoding: utf-8
import time
from contextlib import nullcontext

import paddle
from paddle import distributed as dist

from deepspeech.training.optimizer import OptimizerFactory
from deepspeech.training.trainer import Trainer
import unified_clip.paddle


class U2Trainer(Trainer):
    def __init__(self, config, args):
        super().__init__(config, args)

    def setup_model(self):
        config = self.config
        model = self.build_model(config.model)
        optim_conf = config.optim_conf

        def optimizer_args(parameters, lr_scheduler=None):
            return {
                "grad_clip": unified_clip.paddle.ClipGradByGlobalNorm(config.global_grad_clip),
                "weight_decay": optim_conf.weight_decay,
                "learning_rate": lr_scheduler or optim_conf.lr,
                "parameters": parameters,
            }

        self.model = model
        self.optimizer = OptimizerFactory.from_args(config.optim, optimizer_args(model.parameters()))

    def train_batch(self, batch_index, batch_data, msg):
        train_conf = self.config
        start = time.time()
        loss, attention_loss, ctc_loss = self.model(*batch_data)
        loss /= train_conf.accum_grad
        context = nullcontext if (batch_index + 1) % train_conf.accum_grad == 0 else self.model.no_sync
        with context():
            loss.backward()
        if (batch_index + 1) % train_conf.accum_grad == 0:
            self.optimizer.step()
            self.optimizer.clear_grad()
            self.iteration += 1
        msg += "step: {:.3f}s, rank {}".format(time.time() - start, dist.get_rank())
        return msg
