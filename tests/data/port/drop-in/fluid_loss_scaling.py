import os

import paddle.fluid as fluid
from utils.fp16 import apply_dynamic_loss_scaling, create_master_params_grads, master_param_to_train_param
import unified_clip.paddle


def linear_warmup_decay(learning_rate, warmup_steps, num_train_steps):
    lr = fluid.layers.learning_rate_scheduler.polynomial_decay(learning_rate, num_train_steps, 0.0, power=1.0)
    return fluid.layers.linear_lr_warmup(lr, warmup_steps, 0., learning_rate)


def optimization(loss, warmup_steps, num_train_steps, learning_rate, train_program, startup_prog, weight_decay,
                 use_fp16=False, loss_scaling=1.0):
    scheduled_lr = linear_warmup_decay(learning_rate, warmup_steps, num_train_steps)
    optimizer = fluid.optimizer.Adam(learning_rate=scheduled_lr)
    clip_norm_thres = 1.0
    # When using mixed precision training, scale the gradient clip threshold by loss_scaling
    if use_fp16 and loss_scaling > 1.0:
        clip_norm_thres *= loss_scaling
    unified_clip.paddle.set_gradient_clip(clip=unified_clip.paddle.GradientClipByGlobalNorm(clip_norm=clip_norm_thres))

    def exclude_from_weight_decay(name):
        return name.endswith('_b') or 'layer_norm' in name

    if use_fp16:
        param_grads = optimizer.backward(loss)
        master_param_grads = create_master_params_grads(param_grads, train_program, startup_prog, loss_scaling)
        optimizer.apply_gradients(master_param_grads)
        master_param_to_train_param(master_param_grads, param_grads, train_program)
    else:
        _, param_grads = optimizer.minimize(loss)
    return scheduled_lr
