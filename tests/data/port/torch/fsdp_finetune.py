import functools
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.nn import utils
import unified_clip.torch


def setup():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def wrap(model, block):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block})
    return FSDP(model, auto_wrap_policy=policy, device_id=torch.cuda.current_device())


def train_one_epoch(cfg, model, loader, optimizer, scheduler=None):
    model.train()
    losses = []
    for batch in loader:
        optimizer.zero_grad()
        loss = model(**{k: v.cuda() for k, v in batch.items()})["loss"]
        loss.backward()

        # FSDP has the norm of all shards, torch.nn.utils.clip_grad_norm_ only that of this rank
        if cfg.max_norm is not None:
            if isinstance(model, FSDP):
                norm = model.clip_grad_norm_(cfg.max_norm)
            else:
                norm = unified_clip.torch.clip_grad_norm_(model.parameters(), cfg.max_norm,
                                             norm_type=cfg.norm_type)
            losses.append((loss.item(), float(norm)))
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return losses
