"""Clip the gradients of FSDP2 in the workers of Ray Train. Run with: python ray_train.py"""

import torch
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn
from torch.distributed.fsdp import fully_shard

import unified_clip.torch as uc


def train_loop():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
    fully_shard(model)
    model(torch.ones(8, 6)).square().mean().backward()
    norm = uc.clip_grad_norm_(model.parameters(), max_norm=0.1)
    after = uc.get_total_norm([parameter.grad for parameter in model.parameters()])
    print("rank", train.get_context().get_world_rank(), norm, after)


TorchTrainer(
    train_loop,
    torch_config=TorchConfig(backend="gloo"),  # for CPUs; leave it out for GPUs
    scaling_config=train.ScalingConfig(num_workers=2),
).fit()
