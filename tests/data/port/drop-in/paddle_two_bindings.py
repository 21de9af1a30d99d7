import argparse

import paddle
import paddle.nn as nn
import paddle.nn.functional as F
from pgl.nn import GCNConv
import unified_clip.paddle


class GCN(nn.Layer):
    def __init__(self, sizes):
        super(GCN, self).__init__()
        self.convs = nn.LayerList([GCNConv(a, b) for a, b in zip(sizes, sizes[1:])])

    def forward(self, graph, feature):
        for conv in self.convs[:-1]:
            feature = F.dropout(F.relu(conv(graph, feature)), .5, training=self.training)
        return self.convs[-1](graph, feature)


def main(args, graph, label, mask):
    gnn = GCN([graph.node_feat["words"].shape[1], args.hidden, int(label.max()) + 1])
    if args.optim == 'adam':
        optim = paddle.optimizer.Adam(
            args.lr, parameters=gnn.parameters(),
            grad_clip=unified_clip.paddle.ClipGradByGlobalNorm(args.clip))
    else:
        optim = paddle.optimizer.SGD(
            args.lr, parameters=gnn.parameters(),
            grad_clip=unified_clip.paddle.ClipGradByNorm(args.clip))
    for epoch in range(args.epoch):
        gnn.train()
        pred = gnn(graph, graph.node_feat["words"])
        loss = F.cross_entropy(pred[mask], label[mask])
        loss.backward()
        optim.step()
        optim.clear_grad()
        if epoch % 20 == 0:
            print('%d %.4f' % (epoch, loss))
