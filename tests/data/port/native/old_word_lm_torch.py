###############################################################################
# Language Modeling on Penn Tree Bank
###############################################################################
import math
import time

import torch
from torch.autograd import Variable
from torch.nn.utils import clip_grad

import data
import model as M


def repackage_hidden(h):
    """Wraps hidden states in new Variables, to detach them from their history."""
    return tuple(repackage_hidden(v) for v in h) if isinstance(h, tuple) else h.detach()


def train(model, corpus, args, criterion, lr, epoch):
    model.train()
    total_loss, start_time = 0, time.time()
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, corpus.train.size(0) - 1, args.bptt)):
        inputs, targets = data.batch(corpus.train, i, args.bptt)
        hidden = repackage_hidden(hidden)
        model.zero_grad()
        output, hidden = model(Variable(inputs), hidden)
        loss = criterion(output.view(-1, corpus.ntokens), targets)
        loss.backward()

        # `clip_grad_norm` helps prevent the exploding gradient problem in RNNs / LSTMs.
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        clip_grad.clip_grad_value_(model.decoder.parameters(), 2 * args.clip)
        for p in model.parameters():
            p.data.add_(-lr, p.grad.data)

        total_loss += loss.item()
        if batch % args.log_interval == 0 and batch > 0:
            print('| epoch {:3d} | {:5d} batches | loss {:5.2f} | ppl {:8.2f}'.format(
                epoch, batch, total_loss / args.log_interval, math.exp(total_loss / args.log_interval)))
            total_loss, start_time = 0, time.time()
