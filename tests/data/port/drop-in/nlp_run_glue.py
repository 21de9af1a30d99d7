import argparse
import random
from functools import partial

import numpy as np
import paddle
from paddle.io import DataLoader
from paddlenlp.datasets import load_dataset
from paddlenlp.transformers import BertForSequenceClassification, BertTokenizer, LinearDecayWithWarmup
import unified_clip.paddle


def set_seed(seed):
    random.seed(seed); np.random.seed(seed); paddle.seed(seed)


@paddle.no_grad()
def evaluate(model, loss_fct, metric, data_loader):
    model.eval()
    metric.reset()
    for batch in data_loader:
        input_ids, segment_ids, labels = batch
        metric.update(metric.compute(model(input_ids, segment_ids), labels))
    model.train()
    return metric.accumulate()


def do_train(args):
    set_seed(args.seed)
    model = BertForSequenceClassification.from_pretrained(args.model_name_or_path)
    loader = DataLoader(load_dataset('glue', args.task_name, splits='train'), batch_size=args.batch_size)
    scheduler = LinearDecayWithWarmup(args.learning_rate, len(loader) * args.epochs, args.warmup)

    # Generate parameter names needed to perform weight decay.
    decay_params = [p.name for n, p in model.named_parameters() if not any(nd in n for nd in ["bias", "norm"])]
    optimizer = paddle.optimizer.AdamW(
        learning_rate=scheduler,
        beta1=0.9,
        beta2=0.999,
        epsilon=args.adam_epsilon,
        parameters=model.parameters(),
        weight_decay=args.weight_decay,
        apply_decay_param_fun=lambda x: x in decay_params,
        grad_clip=(
            unified_clip.paddle.ClipGradByGlobalNorm(args.max_grad_norm)
            if args.max_grad_norm > 0
            else None
        ),
    )
    loss_fct = paddle.nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        for step, (input_ids, segment_ids, labels) in enumerate(loader):
            loss = loss_fct(model(input_ids, segment_ids), labels)
            loss.backward()
            optimizer.step()  # clips, too
            scheduler.step()
            optimizer.clear_grad()
            if step % args.logging_steps == 0:
                print("epoch: %d, step: %d, loss: %f" % (epoch, step, loss))
    paddle.save(optimizer.state_dict(), 'opt.pdopt')
