import paddle
from paddle.distributed import fleet
from unified_clip.paddle import ClipGradByGlobalNorm

from gpt import GPTForPretraining, GPTPretrainingCriterion


def main(args):
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {
        "dp_degree": args.dp,
        "mp_degree": args.mp,
        "pp_degree": 1,
    }
    fleet.init(is_collective=True, strategy=strategy)

    model = GPTForPretraining(args)
    criterion = GPTPretrainingCriterion()
    clip = None
    if args.grad_clip > 0:
        clip = ClipGradByGlobalNorm(clip_norm=args.grad_clip)
    optimizer = paddle.optimizer.AdamW(
        learning_rate=args.max_lr, parameters=model.parameters(), weight_decay=args.weight_decay, grad_clip=clip)

    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(optimizer)

    for step, (tokens, mask, labels) in enumerate(args.loader):
        with paddle.amp.auto_cast(args.use_amp, level='O2'):
            loss = criterion(model(tokens), labels, mask)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        if step >= args.max_steps:
            break
