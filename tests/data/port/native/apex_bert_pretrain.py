import argparse
import os

import torch

try:
    from apex import amp
    APEX = True
except ImportError:
    APEX = False

try:
    from torch.nn.utils import clip_grad_norm_
except ImportError:  # torch < 0.4
    from torch.nn.utils import clip_grad_norm as clip_grad_norm_


def take_step(args, model, optimizer, scheduler, loss, step):
    if args.gradient_accumulation_steps > 1:
        loss = loss / args.gradient_accumulation_steps
    if APEX and args.fp16:
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
    else:
        loss.backward()
    if (step + 1) % args.gradient_accumulation_steps:
        return False

    if args.max_grad_norm > 0:
        parameters = amp.master_params(optimizer) if APEX and args.fp16 else model.parameters()
        torch.nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)
    optimizer.step()
    scheduler.step()
    model.zero_grad()
    return True


def parser():
    p = argparse.ArgumentParser()
    p.add_argument('--fp16', action='store_true')
    p.add_argument('--max_grad_norm', type=float, default=1.,
                   help='passed to clip_grad_norm_; 0 is off')
    p.add_argument('--gradient_accumulation_steps', type=int, default=1)
    p.add_argument('--local_rank', type=int, default=int(os.environ.get('LOCAL_RANK', -1)))
    return p


if __name__ == '__main__':
    args = parser().parse_args()
    torch.cuda.set_device(args.local_rank)
