import copy

import paddle
from paddle import nn

from ..utils import logger
from . import optimizer
import unified_clip.paddle

CLIPS = {
    'global': unified_clip.paddle.ClipGradByGlobalNorm,
    'tensor': unified_clip.paddle.ClipGradByNorm,
    'value': unified_clip.paddle.ClipGradByValue,
}


def build_lr_scheduler(lr_config, epochs, step_each_epoch):
    lr_config.update({'epochs': epochs, 'step_each_epoch': step_each_epoch})
    return lr_config.pop('learning_rate', 0.001)


def build_clip(cfg):
    """{'name': 'ClipGradByNorm', 'clip_norm': 10} -> the clip"""
    cfg = copy.deepcopy(cfg)
    if (kind := cfg.pop('kind', None)) is not None:
        return CLIPS[kind](**cfg)
    name = cfg.pop('name')
    return getattr(paddle.nn, name)(**cfg)


def build_optimizer(config, epochs, step_each_epoch, model_list):
    config = copy.deepcopy(config)
    lr = build_lr_scheduler(config.pop('lr'), epochs, step_each_epoch)
    grad_clip = None
    if 'clip_norm' in config:
        clip_norm = config.pop('clip_norm')
        grad_clip = unified_clip.paddle.ClipGradByNorm(clip_norm=clip_norm)
    elif 'clip' in config:
        grad_clip = build_clip(config.pop('clip'))
    optim = getattr(optimizer, config.pop('name'))(learning_rate=lr, grad_clip=grad_clip, **config)
    logger.debug("build optimizer ({}) success..".format(optim))
    return optim(model_list), lr
