"""Trains a small GPT on a memory-mapped token file."""
import math
import os
import time
from contextlib import nullcontext

import numpy as np
import torch

from model import GPT, GPTConfig
import unified_clip.torch

# -- defaults, overridden from the command line by configurator.py
out_dir = 'out'
batch_size = 12
gradient_accumulation_steps = 5 * 8
learning_rate = 6e-4
max_iters = 600000
grad_clip = 1.0 # clip gradients at this value, or disable if == 0.0
device = 'cuda'
dtype = 'float16'
exec(open('configurator.py').read())

ctx = nullcontext() if device == 'cpu' else torch.amp.autocast(device_type=device, dtype=torch.float16)
data = np.memmap('train.bin', dtype=np.uint16, mode='r')


def get_batch(block_size=1024):
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i:i+block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i+1:i+1+block_size].astype(np.int64)) for i in ix])
    return x.to(device), y.to(device)


model = GPT(GPTConfig()).to(device)
scaler = torch.cuda.amp.GradScaler(enabled=(dtype == 'float16'))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))

X, Y = get_batch()
t0 = time.time()
for it in range(max_iters):
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch()
        scaler.scale(loss).backward()
    # clip the gradient
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        unified_clip.torch.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if it % 100 == 0:
        print(f"iter {it}: loss {loss.item() * gradient_accumulation_steps:.4f}, {(time.time() - t0) * 1000:.1f}ms")
        t0 = time.time()
