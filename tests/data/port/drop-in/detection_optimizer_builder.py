from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import math

import paddle
import paddle.optimizer as optimizer
import paddle.regularizer as regularizer

from ppdet.core.workspace import register, serializable
from ppdet.utils.logger import setup_logger
import unified_clip.paddle

logger = setup_logger(__name__)


@register
class OptimizerBuilder():
    """
    Build optimizer handles. `clip_grad_by_norm` and `clip_grad_by_value` come from the YAML.
    """
    __category__ = 'optim'

    def __init__(self, clip_grad_by_norm=None, clip_grad_by_value=None,
                 regularizer={'type': 'L2', 'factor': .0001},
                 optimizer={'type': 'Momentum', 'momentum': .9}):
        self.clip_grad_by_norm = clip_grad_by_norm
        self.clip_grad_by_value = clip_grad_by_value
        self.regularizer = regularizer
        self.optimizer = optimizer

    def __call__(self, learning_rate, model=None):
        if self.clip_grad_by_norm is not None:
            grad_clip = unified_clip.paddle.ClipGradByGlobalNorm(
                clip_norm=self.clip_grad_by_norm)
        elif self.clip_grad_by_value is not None:
            var = abs(self.clip_grad_by_value)
            grad_clip = unified_clip.paddle.ClipGradByValue(min=-var, max=var)
        else:
            grad_clip = None
        reg = None
        if self.regularizer and self.regularizer != 'None':
            reg = getattr(regularizer, self.regularizer['type'] + 'Decay')(self.regularizer['factor'])

        optim_args = self.optimizer.copy()
        op = getattr(optimizer, optim_args.pop('type'))
        param_groups = optim_args.pop('param_groups', None)
        if param_groups:
            params = [{'params': [p for n, p in model.named_parameters() if any(k in n for k in g['params'])]}
                      for g in param_groups]
        else:
            params = [p for p in model.parameters() if p.trainable is True]
        return op(learning_rate=learning_rate, parameters=params, weight_decay=reg,
                  grad_clip=grad_clip, **optim_args)
